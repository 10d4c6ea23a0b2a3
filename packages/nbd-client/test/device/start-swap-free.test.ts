import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'

const program = join(import.meta.dirname, '../helpers/swap-free-process.mjs')

/** Stands for the mounted hierarchy; the program that starts again is real. The kernel's: npm run lab. */
let root: string
let child: ChildProcess

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'nbd-groups-'))
})

afterEach(() => {
  child.kill('SIGKILL')
  rmSync(root, { recursive: true, force: true })
})

interface Life {
  starts: number
  pid: number
  words: string[]
  descriptors: string[]
  variable: string | null
  granted: boolean
  reason: string
}

/** Runs it to its end. `starts`: how often its program began. */
async function run(path: string, environment: NodeJS.ProcessEnv = {}) {
  child = spawn(process.execPath, ['--no-warnings', program, root, path, 'a b', 'ä'], {
    // For a successor: the conversation, and a descriptor of another kind.
    stdio: ['ignore', 'pipe', 'inherit', 'pipe', 'pipe'],
    env: { ...process.env, ...environment },
  })
  let text = ''
  child.stdout?.setEncoding('utf8').on('data', (piece: string) => {
    text += piece
  })
  const [status] = await once(child, 'close')
  expect(status).toBe(3)
  const life = JSON.parse(text) as Life
  expect(life.pid).toBe(child.pid)
  expect(life.variable).toBeNull()
  return life
}

describe('a process that is not to be swapped', () => {
  it('starts again in its own group, as the same process, with what it was given', async () => {
    const life = await run('/', { RDMAKIT_HAND_OVER: '1' })
    expect(life).toMatchObject({ starts: 2, words: ['a b', 'ä'], granted: true })
    expect(readFileSync(join(root, `rdmakit-nbd-${life.pid}/memory.swap.max`), 'utf8')).toBe('0')
    const before = JSON.parse(readFileSync(join(root, 'descriptors'), 'utf8'))
    // Neither one less than it was given, nor one of the first life.
    expect(life.descriptors).toEqual(before)
    expect(life.descriptors.filter((each) => /^[0134] (socket|pipe|.dev.null)/.test(each))).toHaveLength(4)
  })

  it('stays as it is in a group without swap', async () => {
    mkdirSync(join(root, 'a.service'))
    writeFileSync(join(root, 'a.service/memory.swap.max'), '0\n')
    expect(await run('/a.service')).toMatchObject({ starts: 1, granted: true })
  })

  it.each(['/a.service', '/a.scope'])(
    'goes on with a warning in %s when it may not leave it',
    async (path) => {
      // No systemd-run there.
      expect(await run(path, { PATH: root })).toMatchObject({
        starts: 1,
        granted: false,
        reason: expect.stringContaining(`in ${path}: run it as a service with MemorySwapMax=0`),
      })
    },
  )

  it('starts again no third time', async () => {
    // Its write has no effect: the group is not where it looks next.
    expect(await run('/', { STAYS_IN: '/' })).toMatchObject({ starts: 2, granted: false })
  })

  it('takes the mark of another process for none', async () => {
    expect(await run('/', { RDMAKIT_STARTED_AGAIN: '1' })).toMatchObject({ starts: 2, granted: true })
  })
})
