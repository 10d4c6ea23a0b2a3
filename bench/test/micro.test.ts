// Each case of what runs in one process, as often as the ring's first windows take: 1 s.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { CASES } from '../micro/cases.js'

const RUNS = 5

it.each(CASES.map((one) => [one.name, one] as const))('%s', async (_, one) => {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-micro-'))
  try {
    const { run, end } = await one.start(folder)
    let done = 0
    for (; done < RUNS; done++) await run()
    await end()
    expect(done).toBe(RUNS)
  } finally {
    rmSync(folder, { recursive: true })
  }
})
