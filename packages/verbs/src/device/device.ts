import { calling } from '../base/errors.js'
import { type NativeDeviceInfo, native, type ProviderName } from '../native.js'
import { Context } from './context.js'

/** A device that can be opened. */
export type DeviceInfo = Readonly<NativeDeviceInfo>

const PROVIDERS: readonly ProviderName[] = ['ibverbs', 'iwarp', 'shm']

/**
 * Why a provider cannot be used here, in one line with the remedy, or undefined if it can.
 * `iwarp` and `shm` always can; `ibverbs` needs `libibverbs.so.1` and `librdmacm.so.1`.
 */
export function providerProblem(provider: ProviderName): string | undefined {
  return native.providerAvailable(provider)
}

/** All devices of all providers that can be used here (ibv_get_device_list(3)). */
export function listDevices(): DeviceInfo[] {
  return PROVIDERS.filter((provider) => providerProblem(provider) === undefined).flatMap((provider) =>
    calling(`provider ${provider}`, () => native.listDevices(provider)),
  )
}

/**
 * Opens a device by name (ibv_open_device(3)). Connections on this device have the same context, so objects created from it
 * serve them; on InfiniBand, if librdmacm knows the device (rdma_get_devices(3)).
 * @throws VerbsError ENODEV when there is none of that name
 */
export function openDevice(name: string, provider: ProviderName = 'ibverbs'): Context {
  return Context.from(calling(`device ${name}`, () => native.openDevice(provider, name)))
}
