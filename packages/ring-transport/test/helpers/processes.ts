import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Context } from '@rdmakit/verbs'
import { listDevices, openDevice } from '@rdmakit/verbs'
import type { Provider } from './uris.js'

export interface Peer {
  readonly uri: string
  readonly process: ChildProcess
  /** the next thing it tells */
  told(): Promise<Record<string, string>>
  stop(): Promise<void>
}

/** Ends what hangs, before the limit of the test does, which would not say what it waited for. */
export const HANG_MS = 50_000

/** Starts a helper, default programs/peer.mjs, in a process of its own. */
export async function startPeer(
  role: string,
  options: object = {},
  helper = './programs/peer.mjs',
): Promise<Peer> {
  const child = fork(fileURLToPath(new URL(helper, import.meta.url)), [role, JSON.stringify(options)], {
    execArgv: [],
    stdio: ['pipe', 'inherit', 'inherit', 'ipc'],
  })
  const told: Record<string, string>[] = []
  let wake = () => {}
  child.on('message', (message) => {
    told.push(message as Record<string, string>)
    wake()
  })
  let gone = false
  // Later than its exit: by then all that it told is here.
  child.once('disconnect', () => {
    gone = true
    wake()
  })
  const next = async () => {
    let hangs = false
    const timer = setTimeout(() => {
      hangs = true
      wake()
    }, HANG_MS)
    while (told.length === 0 && !gone && !hangs)
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    clearTimeout(timer)
    const message = told.shift()
    if (message === undefined) throw new Error(`the peer "${role}" ${gone ? 'has gone' : 'tells nothing'}`)
    return message
  }
  const stop = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
  }
  try {
    const { uri } = await next()
    return { uri: uri as string, process: child, told: next, stop }
  } catch (failure) {
    await stop()
    throw failure
  }
}

/** A software provider's device. */
export function deviceOf(provider: Provider): Context {
  const device = listDevices().find((one) => one.provider === provider)
  if (device === undefined) throw new Error(`there is no ${provider} device`)
  return openDevice(device.name, provider)
}

/** `length` bytes that follow from `seed`. */
export function pattern(length: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(length)
  for (let at = 0; at < length; at++) bytes[at] = (at * 31 + seed * 7) & 0xff
  return bytes
}

/** Where two lists differ: toEqual takes a microsecond for each byte of an array. */
export function differing(got: readonly Uint8Array[], expected: readonly Uint8Array[]): number[] {
  const length = Math.max(got.length, expected.length)
  return Array.from({ length }, (_, at) => at).filter((at) => {
    const [one, other] = [got[at], expected[at]]
    return one === undefined || other === undefined || Buffer.compare(one, other) !== 0
  })
}

/** Sends all of `messages`, waiting for room. */
export async function sendAll(
  connection: { send(bytes: Uint8Array): boolean; writable(): Promise<void> },
  messages: Iterable<Uint8Array>,
): Promise<number> {
  let refused = 0
  for (const message of messages)
    while (!connection.send(message)) {
      refused++
      await connection.writable()
    }
  return refused
}
