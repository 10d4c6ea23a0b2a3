import { openSync } from 'node:fs'
import { EXIT } from '@rdmakit/operator-kit'
import { beforeEach, expect, it, vi } from 'vitest'
import type { AttachOptions } from '../../src/attach/attach-options.js'
import { makeDevice } from '../../src/attach/make-device.js'
import type { Volume } from '../../src/engine/block-volume.js'
import { presenceOf } from '../../src/kernel/device-identity.js'
import { kernelDevice } from '../../src/kernel/kernel.js'

vi.mock('../../src/kernel/device-identity.js', async (original) => ({
  ...(await original<typeof import('../../src/kernel/device-identity.js')>()),
  presenceOf: vi.fn(),
}))

const connect = vi.spyOn(kernelDevice, 'connect').mockReturnValue(7)
const disconnect = vi.spyOn(kernelDevice, 'disconnect').mockReturnValue()
beforeEach(() => void disconnect.mockClear())

const engine = { exportFlags: 0, attachSocketpair: () => openSync('/dev/null', 'r') }
const volume = { engine, lanes: [{ index: 0 }] } as unknown as Volume
const options = { front: 'nbd', size: 4096, operationTimeout: 1, replicas: 1 } as unknown as AttachOptions
const identifier = 'rdmakit-0123456789abcdef'
const made = () => makeDevice(volume, options, { index: undefined, identifier, kept: true })

it('a device is made that the kernel knows by the identifier it was given', async () => {
  vi.mocked(presenceOf).mockReturnValue('there')
  expect(await made()).toEqual({ index: 7 })
  expect(connect.mock.lastCall).toMatchObject([{ identifier }])
  expect(vi.mocked(presenceOf).mock.lastCall).toEqual([{ front: 'nbd', index: 7, identifier }])
  expect(disconnect).not.toHaveBeenCalled()
})

// Before Linux 5.14: it would be taken for another program's, and its swap would not be turned off.
it('a device whose identifier the kernel does not keep is ended before it is used, with the reason', async () => {
  vi.mocked(presenceOf).mockReturnValue('another')
  await expect(made()).rejects.toMatchObject({
    message: expect.stringMatching(/too old for nbd, which needs Linux 5\.14; --front ublk/),
    status: EXIT.system,
  })
  expect(disconnect.mock.calls).toEqual([[7]])
})

it('a device of which the kernel cannot be asked is ended too', async () => {
  vi.mocked(presenceOf).mockImplementation(() => {
    throw new Error('EACCES')
  })
  await expect(made()).rejects.toThrow('EACCES')
  expect(disconnect.mock.calls).toEqual([[7]])
})
