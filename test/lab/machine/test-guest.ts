import { rm } from 'node:fs/promises'
import { rdmakitSwap } from '../swap/remote-swap.js'
import type { Guest } from './guest.js'
import type { LabParts } from './lab-parts.js'
import { bootWired } from './pair.js'

/** Of the wire between the two guests, which rxe1 of the one and rxe0 of the other are on. */
const ownAddress = '10.79.0.1'
export const peerAddress = '10.79.0.2'
/** Where the peer lends memory, for tests that want it on another machine. */
export const peerServer = `rdma://${peerAddress}:7471`
const startDeadlineMs = 120_000

/**
 * The guest in which a run's tests live, with all drivers loaded, and a small one at the other end of its wire, which
 * answers rping and lends memory.
 *
 *   guest                                        peer
 *   rxe0  10.77.0.1  Soft-RoCE on a veth pair
 *   siw0  10.78.0.1  kernel iWARP
 *   rxe1  10.79.0.1  Soft-RoCE on eth0 ══ wire ══ eth0 ─ rxe0  10.79.0.2: rping -s, swap-server
 *   /dev/nbd0 to nbd3, /dev/ublk-control, /dev/vda (512 MiB)
 */
export class TestGuest implements AsyncDisposable {
  private constructor(
    readonly guest: Guest,
    private readonly peer: Guest,
    private readonly folder: string,
  ) {}

  static async boot(parts: LabParts): Promise<TestGuest> {
    const { listening, connecting, folder } = await bootWired(
      parts,
      { name: 'guest', diskMiB: 512 },
      { name: 'peer', cpus: 1, memoryMiB: 512 },
    )
    const booted = new TestGuest(listening, connecting, folder)
    try {
      await Promise.all([booted.#loadDrivers(parts), booted.#startPeer()])
      return booted
    } catch (error) {
      await booted.powerOff()
      throw error
    }
  }

  async #loadDrivers(parts: LabParts): Promise<void> {
    const scripts = [
      'rxe.sh veth 10.77.0.1',
      `rxe.sh eth0 ${ownAddress} rxe1`,
      `siw.sh '${parts.modules.siw}'`,
      'nbd.sh',
      `ublk.sh '${parts.modules.ublk}'`,
      'disk.sh',
    ]
    await this.guest.run(scripts.map((script) => `sh test/lab/guest/${script}`).join(' && '))
  }

  async #startPeer(): Promise<void> {
    await this.peer.run(['sh', 'test/lab/guest/rxe.sh', 'eth0', peerAddress])
    const pings = this.peer.start(['stdbuf', '-oL', 'rping', '-s', '-d', '-P', '-a', peerAddress])
    const { serve, listening } = rdmakitSwap(peerServer, '128M', '64M')
    const server = this.peer.start(serve)
    await pings.waitForLine(/^rdma_listen/, startDeadlineMs)
    await server.waitForLine(listening, startDeadlineMs)
  }

  async powerOff(): Promise<void> {
    await Promise.all([this.guest.powerOff(), this.peer.powerOff()])
    await rm(this.folder, { recursive: true, force: true })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.powerOff()
  }
}
