import { LocalShell } from '../base/local-shell.js'
import type { RunningProcess } from '../base/shell.js'

const START_MS = 120_000

export interface Lender {
  readonly uri: string
  readonly process: RunningProcess
}

let started: Promise<Lender> | undefined

/**
 * The swap-server of tests that want nothing of theirs but memory, up to 256 MiB at a time: those of a project share one, for
 * a start takes an emulated guest as long as many a test. It ends with the project's process.
 */
export function lender(): Promise<Lender> {
  started ??= start()
  return started
}

async function start(): Promise<Lender> {
  // Of clients that were killed it keeps slabs for a while: small ones, and more than are wanted.
  // By its other name: swap/remote-swap.test.ts measures the one process that is called swap-server/dist/cli.js.
  const process = new LocalShell().start([
    ...['setpriv', '--pdeathsig', 'KILL', 'node', 'packages/rdmakit/bin/rdmakit.js', 'swap-server'],
    ...['--listen', 'rdma://10.77.0.1:0', '--memory', '768M', '--slab-size', '16M'],
  ])
  const [, uri] = await process.waitForLine(/^listening (\S+)/, START_MS)
  return { uri: uri as string, process }
}
