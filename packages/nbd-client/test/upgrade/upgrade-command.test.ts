// An upgrade of a process that does not answer at once: the machine is short of memory, or the process is stopped.
import { beforeEach, expect, it, vi } from 'vitest'
import { upgrade } from '../../src/commands/upgrade-command.js'
import { type ClientStatus, type RunningClient, runningClients } from '../../src/report/control.js'

vi.mock('../../src/report/control.js', async (actual) => ({
  ...(await actual<typeof import('../../src/report/control.js')>()),
  runningClients: vi.fn(),
}))

const PID = 867
const client: RunningClient = {
  pid: PID,
  elsewhere: false,
  status: { pid: PID, mode: 'attach', target: '/dev/nbd0' } as ClientStatus,
  answers: async () => true,
  stop: async () => {},
  upgrade: async () => ({ pid: PID + 1, pause: 3 }),
}

/** A look at who runs, in which `pid` does not answer, and `others` do. */
const isSilent =
  (pid: number, others: RunningClient[] = []): typeof runningClients =>
  async (silent) => {
    silent?.({ program: 'nbd-client', pid, reason: '/run/nbd-client.sock does not answer' })
    return others
  }

beforeEach(() => void vi.mocked(runningClients).mockReset().mockResolvedValue([client]))

it.each([{ pid: PID }, {}])('waits for a process that answers late: %o', async (which) => {
  vi.mocked(runningClients).mockImplementationOnce(isSilent(PID)).mockImplementationOnce(isSilent(PID))
  expect(await upgrade(which, undefined)).toEqual({ device: '/dev/nbd0', pid: PID + 1, pause: 3 })
  expect(runningClients).toHaveBeenCalledTimes(3)
})

it('says of a process that never answers that it may have the device', async () => {
  vi.mocked(runningClients).mockImplementation(isSilent(PID))
  let now = 0
  vi.spyOn(performance, 'now').mockImplementation(() => (now += 10_000))
  await expect(upgrade({ pid: PID }, undefined)).rejects.toThrow(
    /^process 867 has no device; process 867 may have it, and does not answer: .*try again$/,
  )
})

it('does not take the only device that answers for the only one', async () => {
  vi.mocked(runningClients).mockImplementation(isSilent(PID + 5, [client]))
  let now = 0
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => (now += 10_000))
  const refused = upgrade({}, undefined)
  await expect(refused).rejects.toThrow(
    /^\/dev\/nbd0 may not be the only device: process 872 does not answer: .*; name the device$/,
  )
  await expect(refused).rejects.toMatchObject({ status: 69 })
  expect(await upgrade({ pid: PID }, undefined)).toMatchObject({ device: '/dev/nbd0' })
  clock.mockRestore()
})

it('does not wait for another one', async () => {
  vi.mocked(runningClients).mockImplementationOnce(isSilent(PID + 5))
  await expect(upgrade({ pid: PID }, undefined)).rejects.toThrow(/^process 867 has no device$/)
})
