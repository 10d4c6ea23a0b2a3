import { execFile, execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { expect, it, onTestFinished } from 'vitest'

it('a pool of libuv that is busy delays no deadline, no signal and no close', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-pool-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const fifo = join(folder, 'fifo')
  execFileSync('mkfifo', [fifo])
  const script = join(import.meta.dirname, '../helpers/programs/busy-pool.mjs')
  const { stdout } = await promisify(execFile)(process.execPath, [script, fifo], {
    env: { ...process.env, UV_THREADPOOL_SIZE: '1' },
    timeout: 50_000,
    killSignal: 'SIGKILL',
  })
  expect(JSON.parse(stdout)).toEqual({
    name: 'ETIMEDOUT',
    memory: 'ETIMEDOUT',
    aborted: 'enough',
    closed: 'closed',
  })
})
