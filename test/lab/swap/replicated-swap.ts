import { controlFault } from '../../control-fault.js'
import type { CommandResult, RunningProcess, Shell } from '../base/shell.js'
import { until } from '../base/until.js'
import { GuestStar } from '../machine/star.js'
import { rdmakitSwap } from './remote-swap.js'

const startDeadlineMs = 240_000
const stopDeadlineMs = 120_000 // a server asks for what it lent first
/** Of nbd-client, by a signal or by its last resort. */
const clientEndDeadlineMs = 30_000
/** EX_SOFTWARE: the last resort's. */
const lastResortStatus = 70
const endDeadlineMs = 180_000 // swapoff reads back whatever is still out there
/** After a fault, until the volume has all its replicas and all its servers again. */
const wholeDeadlineMs = 180_000

export interface ReplicatedSwapOptions {
  memory: string
  slabSize: string
  size: string
  /** that {@link loadDriver} gave */
  device: string
  /** more words for nbd-client */
  options: readonly string[]
}

/** What of nbd-client's status is looked at here. */
export interface ClientStatus {
  pid: number
  slabs: Record<'mapped' | 'degraded' | 'refilling' | 'away' | 'backup' | 'lost', number>
  servers: { uri: string; slabs: number; state: 'up' | 'away' | 'failed' }[]
  statistics: {
    backup: { working: boolean; bytesRead: number; bytesWritten: number } | null
  }
}

/** Swap in the memory of several hosts, each of which may be hurt, as may the client. */
export class ReplicatedSwap {
  readonly #servers: RunningProcess[] = []
  /** What clients that are gone have said. */
  #said = ''
  #client: RunningProcess | undefined
  /** Milliseconds in which there was no client, and since when there is none. */
  #away = 0
  #gone: number | undefined

  private constructor(
    private readonly star: GuestStar,
    private readonly options: ReplicatedSwapOptions,
  ) {}

  static async attach(star: GuestStar, options: ReplicatedSwapOptions): Promise<ReplicatedSwap> {
    const swap = new ReplicatedSwap(star, options)
    await swap.startServers()
    await swap.startClient()
    return swap
  }

  /** All that nbd-client wrote to stderr, over its several lives. */
  get said(): string {
    return this.#said + (this.#client?.stderr ?? '')
  }

  /** What the servers that run wrote to stderr. */
  get complaints(): string {
    return this.#servers.map((server, index) => `server ${index}:\n${server.stderr}`).join('\n')
  }

  /** indexes */
  get servers(): readonly number[] {
    return this.star.servers.map((_, index) => index)
  }

  /** Those where the volume has something. */
  holders({ servers }: ClientStatus): readonly number[] {
    return this.servers.filter((index) =>
      servers.some(({ uri, slabs }) => uri === this.#uri(index) && slabs > 0),
    )
  }

  host(index: number): Shell {
    return this.star.servers[index] as Shell
  }

  async startServer(index: number): Promise<void> {
    const { memory, size, slabSize } = this.options
    const { serve, listening } = rdmakitSwap(this.#uri(index), memory, size)
    const server = this.host(index).start([...(serve as string[]), '--slab-size', slabSize])
    this.#servers[index] = server
    await server.waitForLine(listening, startDeadlineMs)
  }

  async stopServer(index: number, signal: NodeJS.Signals): Promise<void> {
    await this.#servers[index]?.stop(stopDeadlineMs, signal)
  }

  async startServers(): Promise<void> {
    await Promise.all(this.servers.map((server) => this.startServer(server)))
  }

  async stopServers(signal: NodeJS.Signals): Promise<void> {
    await Promise.all(this.servers.map((server) => this.stopServer(server, signal)))
  }

  /** Returns after the device is attached, and swap can continue. */
  async startClient(): Promise<void> {
    const { memory, size, device, options } = this.options
    const { attach, attached } = rdmakitSwap(this.#uri(0), memory, size, device)
    const others = this.star.servers.slice(1).flatMap((_, index) => ['--server', this.#uri(index + 1)])
    const command = [...(attach as string[]), ...others, ...options]
    this.#client = this.star.client.start(command, { env: controlFault('timer') })
    await this.#client.waitForLine(attached, startDeadlineMs)
    if (this.#gone !== undefined) this.#away += Date.now() - this.#gone
    this.#gone = undefined
  }

  async killClient(): Promise<void> {
    await this.#endClient('SIGKILL')
  }

  /** Has a timer of the client's control code throw, by which it must end itself for its successor. */
  async failControl(): Promise<void> {
    const end = await this.#endClient('SIGUSR2')
    if (end?.status !== lastResortStatus)
      throw new Error(`control threw, and status ${end?.status ?? end?.signal}: ${end?.stderr}`)
  }

  async #endClient(signal: NodeJS.Signals): Promise<CommandResult | undefined> {
    const client = this.#client
    this.#gone = Date.now()
    const end = await client?.stop(clientEndDeadlineMs, signal)
    this.#said += client?.stderr ?? ''
    this.#client = undefined
    return end
  }

  /** Seconds in which there was no client, between its lives. */
  get clientAway(): number {
    return this.#away / 1000
  }

  /** Disconnects a server for this time. */
  async cut(index: number, milliseconds: number): Promise<void> {
    const port = `eth${index}`
    await this.star.client.run(`ip link set ${port} down`)
    await new Promise((resolve) => setTimeout(resolve, milliseconds))
    await this.star.client.run(`ip link set ${port} up`)
  }

  /** Stops a server's process for this time. */
  async halt(index: number, milliseconds: number): Promise<void> {
    this.#servers[index]?.signal('SIGSTOP')
    await new Promise((resolve) => setTimeout(resolve, milliseconds))
    this.#servers[index]?.signal('SIGCONT')
  }

  /** Runs what makes the client lose servers and what brings them back, and waits for both. */
  async losing(servers: readonly number[], fault: () => Promise<void>): Promise<void> {
    const waits = servers.map((server) => {
      const uri = this.#uri(server)
      const lost = () => this.#count(`lost ${uri}:`)
      const back = () => this.#count(`${uri} joins again`) + this.#count(`${uri} is back with its memory`)
      const [before, later] = [lost(), back()]
      return async () => {
        await until(`nbd-client loses ${uri}`, 60_000, () => lost() > before)
        await until(`nbd-client has ${uri} again`, 120_000, () => back() > later)
      }
    })
    await fault()
    await Promise.all(waits.map((wait) => wait()))
  }

  /** Waits until no replica is missing and no server. */
  async whole(): Promise<ClientStatus> {
    let last = ''
    const seen: ClientStatus[] = []
    const look = async (): Promise<boolean> => {
      // What "nbd-client status" asks, without a start of Node each time. A killed one leaves its socket behind.
      const { stdout, stderr } = await this.star.client.exec(
        'curl -sS --unix-socket "$(ls -t /run/rdmakit/nbd-client-*.sock | head -n 1)" http://localhost/status',
      )
      last = stdout + stderr
      if (stdout === '') return false
      const status = JSON.parse(stdout) as ClientStatus
      seen.push(status)
      const { slabs, servers } = status
      const missing = slabs.degraded + slabs.refilling + slabs.away + slabs.backup + slabs.lost
      return missing === 0 && servers.every(({ state }) => state === 'up')
    }
    await until('the volume is whole', wholeDeadlineMs, look).catch((error: Error) => {
      throw new Error(`${error.message}\n${last}`)
    })
    return seen.at(-1) as ClientStatus
  }

  /** Takes the swap off and ends all processes. Throws when one of them did not end as it should. */
  async detach(): Promise<void> {
    const ends = [await this.#client?.stop(endDeadlineMs)]
    for (const server of this.#servers) ends.push(await server.stop(stopDeadlineMs))
    for (const end of ends)
      if (end?.status !== 0) throw new Error(`status ${end?.status ?? end?.signal}: ${end?.stderr}`)
  }

  #uri(index: number): string {
    return `rdma://${GuestStar.serverAddress(index)}:7471`
  }

  #count(text: string): number {
    return this.said.split(text).length - 1
  }
}
