import { existsSync, watch } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { before } from '../base/errors.js'
import { makeWorkFolder } from '../base/work-folder.js'
import { BOOT_MS, Guest, type GuestOptions } from './guest.js'
import type { LabParts } from './lab-parts.js'

export interface PairOptions {
  server?: Omit<GuestOptions, 'wires'>
  client?: Omit<GuestOptions, 'wires'>
}

const wireSocket = 'wire.sock'

/** Two guests on one wire, each with Soft-RoCE on it. */
export class GuestPair implements AsyncDisposable {
  static readonly serverAddress = '10.77.0.1'
  static readonly clientAddress = '10.77.0.2'

  private constructor(
    readonly server: Guest,
    private current: Guest,
    private readonly folder: string,
    private readonly bootOnWire: () => Promise<Guest>,
  ) {}

  get client(): Guest {
    return this.current
  }

  /** Boots both at the same time; one processor each unless told otherwise. */
  static async boot(parts: LabParts, options: PairOptions = {}): Promise<GuestPair> {
    const client = { name: 'client', cpus: 1, ...options.client }
    const { listening, connecting, folder } = await bootWired(
      parts,
      { name: 'server', cpus: 1, ...options.server },
      client,
    )
    const pair = new GuestPair(listening, connecting, folder, () =>
      Guest.boot(parts, { ...client, wires: [{ socket: join(folder, wireSocket), end: 'connect' }] }),
    )
    try {
      await Promise.all([
        pair.server.run(['sh', 'test/lab/guest/rxe.sh', 'eth0', GuestPair.serverAddress]),
        pair.#prepareClient(),
      ])
      return pair
    } catch (error) {
      await pair.powerOff()
      throw error
    }
  }

  /** Boots another client, with a disk of its own, in place of the one that has switched itself off. */
  async bootClient(): Promise<Guest> {
    // What is left of the one before.
    await this.current.kill()
    this.current = await this.bootOnWire()
    await this.#prepareClient()
    return this.current
  }

  async #prepareClient(): Promise<void> {
    await this.current.run(['sh', 'test/lab/guest/rxe.sh', 'eth0', GuestPair.clientAddress])
  }

  async powerOff(): Promise<void> {
    await Promise.all([this.server.powerOff(), this.client.powerOff()])
    await rm(this.folder, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.powerOff()
  }
}

/** Boots two guests at the same time, eth0 of each being an end of one wire. */
export async function bootWired(
  parts: LabParts,
  one: Omit<GuestOptions, 'wires'>,
  other: Omit<GuestOptions, 'wires'>,
): Promise<{ listening: Guest; connecting: Guest; folder: string }> {
  const folder = await makeWorkFolder('wire')
  try {
    const socket = join(folder, wireSocket)
    const listens = Guest.boot(parts, { ...one, wires: [{ socket, end: 'listen' }] })
    listens.catch(() => {}) // Reported below, together with the other one.
    await Promise.race([fileAppears(socket, BOOT_MS), listens]).catch(() => {})
    const connects = Guest.boot(parts, { ...other, wires: [{ socket, end: 'connect' }] })
    const [listening, connecting] = await bothOrNone(listens, connects)
    return { listening, connecting, folder }
  } catch (error) {
    await rm(folder, { recursive: true, force: true })
    throw error
  }
}

async function bothOrNone(...boots: [Promise<Guest>, Promise<Guest>]): Promise<[Guest, Guest]> {
  const [first, second] = await Promise.allSettled(boots)
  if (first.status === 'fulfilled' && second.status === 'fulfilled') return [first.value, second.value]
  const up = [first, second].flatMap((boot) => (boot.status === 'fulfilled' ? [boot.value] : []))
  await Promise.all(up.map((guest) => guest.kill()))
  throw first.status === 'rejected' ? first.reason : (second as PromiseRejectedResult).reason
}

/** Waits for a file to be there. */
export async function fileAppears(file: string, deadlineMs: number): Promise<void> {
  const watcher = watch(join(file, '..'))
  try {
    const appears = new Promise<void>((resolve) => {
      const look = (): void => {
        if (existsSync(file)) resolve()
      }
      watcher.on('change', look)
      look()
    })
    await before(deadlineMs, `waiting for ${file}`, appears)
  } finally {
    watcher.close()
  }
}
