// A folder like that of somebody who has installed the packages, on a host of its own: a network namespace, so that the
// lines of a block are executed with the addresses and ports that they have.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { createInterface } from 'node:readline'
import { endWithProcess } from '../e2e/helpers/processes.js'
import { top } from '../lab/base/paths.js'

/** What the examples import besides the packages; a user installs it, too. */
const OTHERS = ['@types/node', 'prom-client', 'rxjs']
/** What the examples use of the repository, and what pbjs and pbts make of greeter.proto. */
const LINKS = { examples: 'examples', test: 'test', generated: 'examples/service/generated' }
/** Of the hosts that the examples name. */
export const ADDRESSES = ['10.0.0.1', '10.0.0.2', '10.0.0.3']
/** Where the examples have their files. */
const FOLDERS = ['/tmp/', '/etc/rdmakit/', '/run/rdmakit/', '/var/lib/rdmakit/']

interface Manifest {
  name: string
  bin?: Record<string, string>
  workspaces?: string[]
}

const manifestOf = (folder: string) =>
  JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest

/** Links as `npm install` makes them: the packages, and their programs in `.bin`. */
export function installPackages(folder: string): void {
  const modules = join(folder, 'node_modules')
  for (const scope of ['@rdmakit', '@types', '.bin']) mkdirSync(join(modules, scope), { recursive: true })
  for (const workspace of manifestOf(top).workspaces ?? []) {
    const home = join(top, workspace)
    const { name, bin = {} } = manifestOf(home)
    symlinkSync(home, join(modules, name))
    for (const [program, script] of Object.entries(bin))
      symlinkSync(join(home, script), join(modules, '.bin', program))
  }
  for (const name of OTHERS) symlinkSync(join(top, 'node_modules', name), join(modules, name))
  for (const [name, path] of Object.entries(LINKS)) symlinkSync(join(top, path), join(folder, name))
}

/** A network namespace that has the examples' addresses, for as long as its process runs. */
async function startHost() {
  const addresses = ADDRESSES.map((address) => `ip address add ${address}/32 dev lo`)
  const script = ['ip link set lo up', ...addresses, 'echo up', 'exec cat'].join(' && ')
  const namespaces = process.getuid?.() === 0 ? ['--net'] : ['--net', '--map-root-user']
  const host = endWithProcess(
    spawn('unshare', [...namespaces, 'sh', '-c', script], { stdio: ['pipe', 'pipe', 'inherit'] }),
  )
  const [line] = await once(createInterface({ input: host.stdout }), 'line', {
    signal: AbortSignal.timeout(30_000),
  })
  if (line !== 'up') throw new Error(`the network namespace says ${line}`)
  const user = namespaces.length > 1 ? ['--user', '--preserve-credentials'] : []
  const enter = ['--target', `${host.pid}`, '--net', ...user]
  return { enter, end: () => void host.kill('SIGKILL') }
}

/** Where a block is executed. */
export interface Place {
  /** in which its lines are executed */
  readonly folder: string
  readonly env: NodeJS.ProcessEnv
  /** milliseconds that a line may take: only ends what hangs */
  readonly patienceMs: number
  /** what the lines print is shown as it comes */
  readonly echo: boolean
  /** A line, or a program, as it is executed here. */
  here(text: string): string
  /** The words that execute a shell's line here. */
  launch(line: string): Promise<readonly string[]>
}

export class Workplace implements Place, Disposable {
  readonly patienceMs = 50_000
  readonly echo = false
  readonly folder = mkdtempSync(join(tmpdir(), 'rdmakit-example-'))
  readonly env: NodeJS.ProcessEnv
  #host: Awaited<ReturnType<typeof startHost>> | undefined

  constructor() {
    installPackages(this.folder)
    this.env = {
      ...process.env,
      PATH: [join(this.folder, 'node_modules', '.bin'), process.env.PATH].join(delimiter),
      RDMAKIT_RUN: this.folder,
    }
  }

  /** On this workplace's host. */
  async launch(line: string): Promise<readonly string[]> {
    this.#host ??= await startHost()
    return ['nsenter', ...this.#host.enter, 'bash', '-ec', line]
  }

  /** Over iWARP where it names an RDMA device, with no more than a gibibyte, and with its files in this folder. */
  here(text: string): string {
    return FOLDERS.reduce(
      (changed, folder) => changed.replaceAll(folder, `${this.folder}/`),
      text.replaceAll('rdma://', 'iwarp://').replaceAll(/\b\d+G\b/g, '1G'),
    )
  }

  [Symbol.dispose](): void {
    this.#host?.end()
    rmSync(this.folder, { recursive: true, force: true })
  }
}
