import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Context } from '@rdmakit/verbs'
import { listDevices, openDevice } from '@rdmakit/verbs'

export interface Peer {
  readonly uri: string
  readonly process: ChildProcess
  /** the next thing it tells */
  told(): Promise<Record<string, string>>
  stop(): Promise<void>
}

/** Starts a helper, default helpers/peer.mjs, in a process of its own. */
export async function startPeer(role: string, options: object = {}, helper = './peer.mjs'): Promise<Peer> {
  const child = fork(fileURLToPath(new URL(helper, import.meta.url)), [role, JSON.stringify(options)], {
    execArgv: [],
  })
  const told: Record<string, string>[] = []
  let wake: (() => void) | undefined
  child.on('message', (message) => {
    told.push(message as Record<string, string>)
    wake?.()
  })
  const next = async () => {
    const deadline = Date.now() + 10_000
    while (told.length === 0) {
      if (Date.now() > deadline) throw new Error(`the peer "${role}" tells nothing`)
      if (child.exitCode !== null) throw new Error(`the peer "${role}" has exited: ${child.exitCode}`)
      await new Promise<void>((resolve) => {
        wake = resolve
        setTimeout(resolve, 100)
      })
    }
    return told.shift() as Record<string, string>
  }
  const { uri } = await next()
  return {
    uri: uri as string,
    process: child,
    told: next,
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const exited = once(child, 'exit')
      child.kill('SIGKILL')
      await exited
    },
  }
}

/** The device of the iwarp provider. */
export function iwarpDevice(): Context {
  const device = listDevices().find(({ provider }) => provider === 'iwarp')
  if (device === undefined) throw new Error('there is no iwarp device')
  return openDevice(device.name, 'iwarp')
}

/** `length` bytes that follow from `seed`. */
export function pattern(length: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(length)
  for (let at = 0; at < length; at++) bytes[at] = (at * 31 + seed * 7) & 0xff
  return bytes
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
