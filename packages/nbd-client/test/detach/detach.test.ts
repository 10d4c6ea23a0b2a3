// A detach whose device's process ends by itself between the look at it and the request, or after that: another detach
// runs, or it was killed. The kernel's part is made up here.
import { spawnSync } from 'node:child_process'
import { beforeEach, describe, expect, it, vi } from 'vitest'
import { detach } from '../../src/detach/detach.js'
import { endHere } from '../../src/detach/end-here.js'
import { inKernel, processesOf } from '../../src/detach/owner.js'
import { swappedTo, usesBesidesSwap } from '../../src/detach/uses-besides-swap.js'
import { presenceOf } from '../../src/kernel/device-identity.js'
import type { ClientStatus, RunningClient } from '../../src/report/control.js'

const IDENTIFIER = 'rdmakit-0123456789abcdef'
const THERE = { identifier: IDENTIFIER, left: false }
const LEFT = { identifier: IDENTIFIER, left: true }
const NONE = { identifier: undefined, left: false }
const OTHER = { identifier: 'rdmakit-fedcba9876543210', left: false }

vi.mock('../../src/detach/owner.js', () => ({
  inKernel: vi.fn(),
  processesOf: vi.fn(),
}))
vi.mock('../../src/detach/end-here.js', () => ({ endHere: vi.fn() }))
vi.mock('../../src/detach/uses-besides-swap.js', () => ({
  usesBesidesSwap: vi.fn(),
  swappedTo: vi.fn(),
}))
vi.mock('../../src/kernel/device-identity.js', async (original) => ({
  ...(await original<typeof import('../../src/kernel/device-identity.js')>()),
  presenceOf: vi.fn(),
}))

/** Of a process that has ended, whose control socket fails so; undefined: that took the request. */
function owner(failure?: Error): RunningClient {
  const { pid } = spawnSync('true')
  const status = { pid } as ClientStatus
  const stop = vi.fn(async () => {
    if (failure !== undefined) throw failure
  })
  const upgrade = async () => Promise.reject(failure)
  return { pid, elsewhere: false, status, answers: async () => false, stop, upgrade }
}

const removed = (code: string) => Object.assign(new Error(`connect ${code} /run/nbd-client-7.sock`), { code })
/** What the kernel has at the first look, and at the next. */
const kernelHas = (...found: ReturnType<typeof inKernel>[]) => {
  for (const each of found) vi.mocked(inKernel).mockReturnValueOnce(each)
}
const detached = () => detach('/dev/nbd7', { timeout: 60, force: false })

beforeEach(() => {
  vi.spyOn(process, 'geteuid').mockReturnValue(0)
  vi.mocked(endHere).mockReset()
  vi.mocked(inKernel).mockReset()
  vi.mocked(processesOf).mockReset().mockResolvedValue({ owner: undefined, hung: [] })
  vi.mocked(usesBesidesSwap).mockReset().mockResolvedValue([])
  vi.mocked(swappedTo).mockReset()
  vi.mocked(presenceOf).mockReset().mockReturnValue('gone')
})

describe('a device whose process ended unasked', () => {
  it.each(['ENOENT', 'ECONNREFUSED', 'ECONNRESET'])('is detached if it ended it (%s)', async (code) => {
    vi.mocked(processesOf).mockResolvedValueOnce({ owner: owner(removed(code)), hung: [] })
    kernelHas(THERE, NONE)
    await detached()
    expect(endHere).not.toHaveBeenCalled()
  })

  it('is detached, and another one that has its number now is left alone', async () => {
    vi.mocked(processesOf).mockResolvedValueOnce({ owner: owner(removed('ENOENT')), hung: [] })
    kernelHas(THERE, OTHER)
    await detached()
    expect(endHere).not.toHaveBeenCalled()
  })

  it.each([
    ['end', THERE],
    ['remove', LEFT],
  ] as const)('is looked at again if it has left something: %s', async (plan, found) => {
    vi.mocked(processesOf).mockResolvedValueOnce({ owner: owner(removed('ECONNREFUSED')), hung: [] })
    kernelHas(THERE, found)
    await detached()
    const device = { front: 'nbd', index: 7, identifier: IDENTIFIER }
    expect(vi.mocked(endHere).mock.calls).toEqual([[plan, device, 60_000]])
  })
})

describe('a device whose process ended after it took the request', () => {
  const asked = () => vi.mocked(processesOf).mockResolvedValueOnce({ owner: owner(), hung: [] })

  it('is detached', async () => {
    asked()
    kernelHas(THERE)
    await detached()
    expect(inKernel).toHaveBeenCalledOnce()
    expect(endHere).not.toHaveBeenCalled()
  })

  // It was killed, as for lack of memory: that is when swap is turned off.
  it('is not detached while it is swap: only its next process has the pages', async () => {
    asked()
    kernelHas(THERE, THERE)
    vi.mocked(presenceOf).mockReturnValue('there')
    vi.mocked(swappedTo).mockReturnValue(4)
    await expect(detached()).rejects.toThrow('only its next nbd-client can bring back')
    expect(endHere).not.toHaveBeenCalled()
  })

  it('is ended here if nobody uses it', async () => {
    asked()
    kernelHas(THERE, THERE)
    vi.mocked(presenceOf).mockReturnValue('there')
    await detached()
    const device = { front: 'nbd', index: 7, identifier: IDENTIFIER }
    expect(vi.mocked(endHere).mock.calls).toEqual([['end', device, 60_000]])
  })

  it('has ended when only its number is left, for somebody has it open', async () => {
    asked()
    kernelHas(THERE)
    vi.mocked(presenceOf).mockReturnValue('there')
    const open = { kind: 'open', on: 'nbd7', by: 'process 8 (dd)' } as const
    vi.mocked(usesBesidesSwap).mockResolvedValueOnce([]).mockResolvedValueOnce([open])
    const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
    await detached()
    expect(said.mock.lastCall?.[0]).toMatch(/\/dev\/nbd7 has ended, and is gone when it is no longer in use/)
    said.mockRestore()
    expect(endHere).not.toHaveBeenCalled()
  })
})

it('a process of another PID namespace is asked nothing, for its number is not known here', async () => {
  const other = { ...owner(new Error('asked')), elsewhere: true }
  vi.mocked(processesOf).mockResolvedValue({ owner: other, hung: [] })
  kernelHas(THERE)
  await expect(detached()).rejects.toThrow('of another PID namespace; detach it from there')
  expect(other.stop).not.toHaveBeenCalled()
})

it('a process that does not answer the request is reported', async () => {
  vi.mocked(processesOf).mockResolvedValue({ owner: owner(new Error('it does not answer')), hung: [] })
  kernelHas(THERE)
  await expect(detached()).rejects.toThrow('it does not answer')
  expect(endHere).not.toHaveBeenCalled()
})
