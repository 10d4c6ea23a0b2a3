import { expect, it, vi } from 'vitest'
import { pull } from '../../src/detach/disconnect.js'
import { beginSwapOff } from '../../src/kernel/swap.js'
import { ublkDevice } from '../../src/kernel/ublk-device.js'

vi.mock('../../src/kernel/device-identity.js', () => ({ presenceOf: () => 'there' }))
vi.mock('../../src/kernel/device-uses.js', () => ({ swapsOn: () => [{ name: 'ublkb7', kibibytes: 4 }] }))
vi.mock('../../src/kernel/swap.js', () => ({ beginSwapOff: vi.fn() }))

const device = { front: 'ublk', index: 7, identifier: 'rdmakit-ublk-72646d0123456789' } as const

it('a ublk device that is still swap when it was taken away is told of, and what is left of it removed', async () => {
  vi.spyOn(ublkDevice, 'is').mockReturnValue(true)
  const stop = vi.spyOn(ublkDevice, 'stop').mockResolvedValue()
  const remove = vi.spyOn(ublkDevice, 'remove').mockResolvedValue()
  const over = Promise.reject(new Error('swapoff /dev/ublkb7 failed'))
  over.catch(() => {})
  vi.mocked(beginSwapOff).mockResolvedValue({ over })
  await expect(pull(device)).rejects.toThrow('swapoff /dev/ublkb7 failed')
  expect(stop.mock.calls).toEqual([[7]])
  expect(remove.mock.calls).toEqual([[7]])
  vi.mocked(beginSwapOff).mockResolvedValue({ over: Promise.resolve() })
  await pull(device)
  expect(remove).toHaveBeenCalledTimes(2)
})
