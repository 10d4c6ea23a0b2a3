import { openSync } from 'node:fs'
import { expect, it, onTestFinished, vi } from 'vitest'
import { NbdLink } from '../../src/device/nbd-link.js'
import type { Volume } from '../../src/engine/block-volume.js'
import { kernelDevice } from '../../src/kernel/kernel.js'

vi.mock('../../src/kernel/device-identity.js', () => ({ presenceOf: () => 'there' }))

const device = { front: 'nbd', index: 7, identifier: 'rdmakit-test' } as const

/** A volume whose lanes get no socket as often as `refusals` says, of which those that are `serving` have one. */
function volumeWith(refusals: number, lanes: readonly number[] = [], serving: readonly number[] = []) {
  const attached: number[] = []
  let idle: (event: { lane: number }) => void = () => {}
  const engine = {
    exportFlags: 0,
    on(_: 'laneIdle', listener: typeof idle) {
      idle = listener
      return () => {}
    },
    attachSocketpair(lane: number) {
      if (serving.includes(lane)) throw Object.assign(new Error('it serves a connection'), { code: 'EBUSY' })
      if (refusals-- > 0) throw Object.assign(new Error('too many open files'), { code: 'EMFILE' })
      attached.push(lane)
      return openSync('/dev/null', 'r')
    },
  }
  const volume = { engine, size: 4096, lanes: lanes.map((index) => ({ index })) } as unknown as Volume
  return { volume, attached, idle: (lane: number) => idle({ lane }) }
}

// The kernel keeps the device's requests until then, and its only lane may be that one.
it('a lane for which no socket can be made gets one when there is one again', async () => {
  vi.useFakeTimers()
  onTestFinished(() => void vi.useRealTimers().restoreAllMocks())
  const given = vi.spyOn(kernelDevice, 'reconfigure').mockImplementation(() => {})
  const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
  const { volume, attached, idle } = volumeWith(2)
  const link = new NbdLink(volume, device, { timeout: 6, deadConnectionTimeout: 3600 })
  idle(3)
  // It is told once for one lane, whatever else happens to it.
  idle(3)
  await vi.advanceTimersByTimeAsync(10_000)
  link.end()
  expect(attached).toEqual([3])
  expect(given).toHaveBeenCalledOnce()
  expect(said.mock.calls.map(([text]) => text)).toEqual([
    expect.stringMatching(/lane 3 has no socket: too many open files/),
    expect.stringMatching(/lane 3 has no socket: too many open files/),
  ])
})

// Of a hand-over nobody hears that a lane is idle.
it('a lane that lost its socket during a hand-over that failed gets one, and the others keep theirs', async () => {
  vi.useFakeTimers()
  onTestFinished(() => void vi.useRealTimers().restoreAllMocks())
  const given = vi.spyOn(kernelDevice, 'reconfigure').mockImplementation(() => {})
  const said = vi.spyOn(process.stderr, 'write').mockReturnValue(true)
  const { volume, attached } = volumeWith(0, [0, 1, 2], [0])
  const link = new NbdLink(volume, device, { timeout: 6, deadConnectionTimeout: 3600 })
  await link.retake([])
  await vi.advanceTimersByTimeAsync(10_000)
  link.end()
  expect(attached).toEqual([1, 2])
  expect(given).toHaveBeenCalledTimes(2)
  expect(said).not.toHaveBeenCalled()
})
