// Options that are undefined are as if they were left out, for the compiler as well: of a server, of a volume, and of its
// fronts.
import { randomUUID } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  type LendingOptions,
  type ListeningOptions,
  type ListOptions,
  type SessionOptions,
  SwapServer,
  type SwapServerOptions,
  SwapServerSession,
} from '@rdmakit/swap-server'
import { expect, it, onTestFinished } from 'vitest'
import type { Refusing } from '../../../test/refusing.js'
import {
  type AttachOptions,
  type BackupOptions,
  type BlockEngineOptions,
  type ExportOptions,
  type FrontOptions,
  type KernelDeviceOptions,
  type ServeOptions,
  type TlsOptions,
  Volume,
  type VolumeOptions,
} from '../src/index.js'

/** What has such a property does not compile here. */
const REFUSING: readonly Refusing<
  | AttachOptions
  | BackupOptions
  | BlockEngineOptions
  | ExportOptions
  | FrontOptions
  | KernelDeviceOptions
  | LendingOptions
  | ListeningOptions
  | ListOptions
  | ServeOptions
  | SessionOptions
  | SwapServerOptions
  | TlsOptions
  // prepare is a method, so that a volume of one engine is one of any.
  | Omit<VolumeOptions, 'prepare'>
>[] = []

const isNone: typeof REFUSING extends readonly never[] ? true : false = true

it('every option of a server, a session and a volume may be undefined', async () => {
  expect(isNone).toBe(true)
  const none = { client: undefined, tenant: undefined, key: undefined, linger: undefined, signal: undefined }
  const server = new SwapServer({
    memory: 4 * 2 ** 20,
    slabSize: 2 ** 20,
    sessionTimeout: undefined,
    maxSessions: undefined,
    maxDataConnections: undefined,
    maxLinger: undefined,
    bandwidth: undefined,
    lending: { headroom: undefined, interval: undefined, patience: undefined, files: undefined },
    tenants: undefined,
    log: undefined,
    impairment: undefined,
    audit: undefined,
    descriptors: undefined,
    greetingTimeout: undefined,
    collect: undefined,
  })
  onTestFinished(() => server.close())
  const uri = await server.listen(`shm://${join(tmpdir(), `${randomUUID()}.sock`)}`)
  const session = await SwapServerSession.open([uri], {
    ...none,
    heartbeatInterval: undefined,
    heartbeatTimeout: undefined,
    takeOver: undefined,
    unattended: undefined,
    largeAnswers: undefined,
  })
  expect(await session.list({ most: undefined, signal: undefined })).toEqual([])
  await session.close()
  const volume = await Volume.open({
    servers: [[uri]],
    size: 2 ** 20,
    lanes: 1,
    populated: undefined,
    replicas: undefined,
    spares: undefined,
    thin: undefined,
    backup: undefined,
    access: undefined,
    linger: undefined,
    reconnect: undefined,
    raise: undefined,
    keep: undefined,
    away: undefined,
    signal: undefined,
    progress: undefined,
    engine: {
      readOnly: undefined,
      operationTimeout: undefined,
      waitMode: undefined,
      maxSpin: undefined,
      prefault: undefined,
      ioFlusher: undefined,
      acknowledge: undefined,
      readAhead: undefined,
      refillRate: undefined,
      pageMap: undefined,
      checksums: undefined,
      pageChecksums: undefined,
      compress: undefined,
      pageLengths: undefined,
      slabMap: undefined,
      resync: undefined,
      exports: [{ name: undefined, description: undefined, offset: undefined, size: undefined }],
      minimumBlockSize: undefined,
      tls: undefined,
      handshakeTimeout: undefined,
      maxHandshakes: undefined,
      stallTimeout: undefined,
      laneWait: undefined,
    },
  })
  onTestFinished(() => volume.close())
  expect(server.holders).toMatchObject([{ bytes: 2 ** 20 }])
})
