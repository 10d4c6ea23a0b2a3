import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { Attachment, type AttachmentParts } from '../../src/device/attachment.js'
import { DeviceHandOver } from '../../src/device/device-hand-over.js'
import type { DeviceLink } from '../../src/device/device-link.js'
import type { DeviceServices } from '../../src/device/device-services.js'
import { HAND_OVER_VERSION } from '../../src/upgrade/hand-over-channel.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

it('a hand-over that finds no descriptor for the device ends the successor, and this process keeps the device', async () => {
  const folder = temporaryFolder()
  const pid = join(folder, 'pid')
  const parts = {
    device: { front: 'ublk', index: 0 },
    options: { signal: new AbortController().signal },
    succession: { folder: { path: folder } },
  } as unknown as AttachmentParts
  const link = { part: () => Promise.reject(new Error('EMFILE')) } as unknown as DeviceLink
  const services = { withLastStatus: (work: () => unknown) => work() } as unknown as DeviceServices
  const kept = () => {
    throw new Error('the device was given up')
  }
  const holder = { leave: kept, over: kept, relinked: kept, retaken: kept }
  const handOver = new DeviceHandOver(new Attachment(parts, link), services, holder)
  const ready = `{"say":"ready","version":${HAND_OVER_VERSION}}`
  const script = `echo $$ >'${pid}'; echo '${ready}' >&3; exec cat <&3`
  await expect(handOver.upgrade(['sh', '-c', script])).rejects.toThrow('EMFILE')
  expect(existsSync(`/proc/${readFileSync(pid, 'utf8').trim()}`)).toBe(false)
  expect(handOver).toMatchObject({ successor: undefined, underWay: undefined })
})
