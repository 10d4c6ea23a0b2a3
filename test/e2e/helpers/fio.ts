import { type ChildProcess, spawn } from 'node:child_process'
import { endWithProcess, PATIENCE_MS } from './processes.js'

/** fio's exit status after SIGINT, even if it has found an error by then. */
const INTERRUPTED = 128

/** fio as it writes 4 KiB at random to an export, and verifies what it wrote, until it is told to end. */
export class VerifyingFio implements AsyncDisposable {
  readonly #process: ChildProcess
  readonly #ended: Promise<number | null>
  #output = ''

  /** @param size of the export's part that it uses, as fio reads it @param rate writes per second; default: all it can */
  constructor(uri: string, size: string, rate?: number) {
    const fio = spawn(
      'fio',
      [
        ...['--name=verify', '--ioengine=nbd', `--uri=${uri}`, '--rw=randwrite', '--bs=4k', '--iodepth=16'],
        ...[`--size=${size}`, '--time_based', '--runtime=3600', '--verify=crc32c', '--verify_fatal=1'],
        // A thread, for a process of fio's own would outlive it when it is killed.
        ...['--verify_backlog=256', '--verify_state_save=0', '--output-format=json', '--thread'],
        ...(rate === undefined ? [] : [`--rate_iops=${rate}`]),
      ],
      { stdio: ['ignore', 'pipe', 'pipe'] },
    )
    this.#process = endWithProcess(fio)
    for (const stream of [this.#process.stdout, this.#process.stderr])
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#output += text
      })
    this.#ended = new Promise((resolve) => this.#process.once('close', resolve))
  }

  /** Resolves when it has ended by itself, of an error that is. @returns its exit status */
  fails(): Promise<number | null> {
    return this.#ended
  }

  /**
   * Ends it.
   * @returns the 99th percentile of how long its writes took, in microseconds
   * @throws Error: it had ended before, has read something else than it wrote, or has had an error
   */
  async end(): Promise<number> {
    const alone = this.#process.exitCode !== null
    this.#process.kill('SIGINT')
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`fio does not end\n${this.#output}`)), PATIENCE_MS)
    })
    const status = await Promise.race([this.#ended, late]).finally(() => clearTimeout(timer))
    if (alone || status !== INTERRUPTED) throw new Error(`fio ended with ${status}\n${this.#output}`)
    const [job] = JSON.parse(this.#output.slice(this.#output.indexOf('{'))).jobs
    if (job.error !== 0 || job.read.total_ios === 0) throw new Error(`fio has failed\n${this.#output}`)
    return Math.round(job.write.clat_ns.percentile['99.000000'] / 1000)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill('SIGKILL')
    await this.#ended
  }
}
