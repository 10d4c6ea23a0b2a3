// A TypeScript program's view of the packages: compiled, not run.
import { Volume, type VolumeOptions } from '@rdmakit/nbd-client'
import { exitStatusOf, ProgramCommand } from '@rdmakit/operator-kit'
import { RingConnection, type RingMessage, RingServer } from '@rdmakit/ring-transport'
import { collectRingMetrics } from '@rdmakit/ring-transport/metrics'
import { SwapServer, SwapServerSession } from '@rdmakit/swap-server'
import { ConnectionId, type QueuePair, VerbsError } from '@rdmakit/verbs'
import { Registry } from 'prom-client'

export const server: RingServer = await RingServer.listen('iwarp://127.0.0.1:0', {
  onConnection(connection: RingConnection) {
    connection.messages.subscribe((message: RingMessage) => console.log(message.text()))
  },
})
collectRingMetrics(new Registry(), { server })
export const answer: Uint8Array = await (await RingConnection.connect(server.uri)).request(new Uint8Array(1))
export const volume = (options: VolumeOptions): Promise<Volume> => Volume.open(options)
export const code = (failure: unknown): string => (failure instanceof VerbsError ? failure.code : '')
export const session = (): Promise<SwapServerSession> => SwapServerSession.open(['iwarp://127.0.0.1:1'])
export const program: ProgramCommand = new ProgramCommand('example')
export const status: number = exitStatusOf(new Error('anything'))
export const lender = new SwapServer({ memory: 2 ** 26 })
export let queuePair: QueuePair | undefined
export const id: Promise<ConnectionId> = ConnectionId.resolve('iwarp://127.0.0.1:1')

// @ts-expect-error what the packages share is not public
import('@rdmakit/verbs').then(({ deferred }) => deferred)
