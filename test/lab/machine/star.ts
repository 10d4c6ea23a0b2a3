import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { makeWorkFolder } from '../base/work-folder.js'
import { BOOT_MS, Guest, type GuestOptions } from './guest.js'
import type { LabParts } from './lab-parts.js'
import { fileAppears } from './pair.js'
import type { Wire } from './qemu.js'

export interface StarOptions {
  /** how many servers */
  servers: number
  server?: Omit<GuestOptions, 'wires'>
  client?: Omit<GuestOptions, 'wires'>
}

/**
 * One client guest and several server guests, each on a wire of its own to the client. The client bridges
 * the wires, so that it reaches all of them through one RDMA device.
 */
export class GuestStar implements AsyncDisposable {
  static readonly clientAddress = '10.77.0.100'

  private constructor(
    readonly client: Guest,
    readonly servers: readonly Guest[],
    private readonly folder: string,
  ) {}

  static serverAddress(index: number): string {
    return `10.77.0.${index + 1}`
  }

  /** Boots all at the same time; one processor each unless told otherwise. */
  static async boot(parts: LabParts, options: StarOptions): Promise<GuestStar> {
    const folder = await makeWorkFolder('star')
    const boots: Promise<Guest>[] = []
    try {
      const wires = Array.from(
        { length: options.servers },
        (_, number): Wire => ({ socket: join(folder, `wire${number}.sock`), end: 'listen', number }),
      )
      for (const wire of wires) {
        const name = `server${wire.number}`
        const boot = Guest.boot(parts, { name, cpus: 1, ...options.server, wires: [wire] })
        boots.push(boot)
        boot.catch(() => {}) // Reported below.
        await Promise.race([fileAppears(wire.socket, BOOT_MS), boot])
      }
      const ends = wires.map((wire): Wire => ({ ...wire, end: 'connect' }))
      boots.push(Guest.boot(parts, { name: 'client', cpus: 1, ...options.client, wires: ends }))
      const guests = await Promise.all(boots)
      const client = guests.pop() as Guest
      const servers = guests
      const bridge = ['sh', 'test/lab/guest/bridge.sh', ...wires.map((_, index) => `eth${index}`)]
      await client.run(bridge)
      await Promise.all([
        client.run(['sh', 'test/lab/guest/rxe.sh', 'br0', GuestStar.clientAddress]),
        ...servers.map((server, index) =>
          server.run(['sh', 'test/lab/guest/rxe.sh', 'eth0', GuestStar.serverAddress(index)]),
        ),
      ])
      return new GuestStar(client, servers, folder)
    } catch (error) {
      for (const boot of await Promise.allSettled(boots))
        if (boot.status === 'fulfilled') await boot.value.kill()
      await rm(folder, { recursive: true, force: true })
      throw error
    }
  }

  async powerOff(): Promise<void> {
    await Promise.all([this.client, ...this.servers].map((guest) => guest.powerOff()))
    await rm(this.folder, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.powerOff()
  }
}
