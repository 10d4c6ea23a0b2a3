import { UsageError } from '@rdmakit/verbs'
import type { VolumeSettings } from '../engine/volume-settings.js'
import { devicePath, type Front, parseDevice } from '../kernel/device-name.js'
import type { Safety } from '../kernel/kernel.js'

/** The options of attach. */
export interface AttachOptions extends VolumeSettings {
  /** the kernel's driver that serves the device; default `nbd` */
  readonly front?: Front | undefined
  /** `/dev/nbdN` or `/dev/ublkbN`, as `front` says; default the first free one */
  readonly device: string | undefined
  /** keep lanes on the processors whose requests they serve */
  readonly pin: boolean
  readonly swap: boolean
  readonly swapPriority: number | undefined
  /** where to serve metrics */
  readonly metrics: string | undefined
  /** folder that lets a successor of this process go on with the device; default one of its own with `swap`; false: none */
  readonly state?: string | false | undefined
  /** what starting this process out of swap came to; default: what its control group says */
  readonly swapFree?: Safety | undefined
}

/** @returns undefined: the first free one @throws UsageError: it is no device of that driver */
export function chosenDevice({
  device,
  front = 'nbd',
}: {
  device?: string | undefined
  front?: Front | undefined
}) {
  if (device === undefined) return undefined
  const name = parseDevice(device)
  if (name.front !== front) throw new UsageError(`${devicePath(name)} is not a device of --front ${front}`)
  return name
}

/** For swap: the engine's memory is there before it is needed, and its lanes are part of the I/O path. */
export function swapSettings({ swap }: AttachOptions) {
  return { prefault: swap, ioFlusher: swap }
}
