import { becomeIoFlusher, replaceProcess, type Safety } from '../kernel/kernel.js'
import { ControlGroup } from '../kernel/swap-free-group.js'
import { givenDescriptors } from '../upgrade/hand-over-channel.js'
import { ownCommand } from '../upgrade/own-command.js'

/**
 * In the environment of a process that was started again: its own number, so that no child takes it for its own, and
 * what its first life has found out.
 */
const STARTED_AGAIN = 'RDMAKIT_STARTED_AGAIN'
const SCOPE = ['--scope', '--quiet', '--collect', '--property=MemorySwapMax=0', '--']
const SYSTEMD_TIMEOUT_MS = 10_000

/**
 * Keeps this whole process out of swap, which requires a start inside of a control group without swap: memory
 * from before a move into one stays where it was. Outside of one, the process moves:
 *
 *   in a group without swap, as a service is             stays there
 *   in the root group                                    a group of its own, which goes when it ends
 *   in a scope, as a session's shell is, under systemd   a scope of its own
 *   in any other                                         stays: the owner of that group relies on it
 *
 * It also marks all threads as part of the I/O path, V8's and those of libuv, which are there before the first line of
 * a program: a thread that needs memory, and writes to the device to get it, would wait for itself if the
 * volume has to reach a server again. That, too, requires a start.
 *
 * So the process re-executes its program once. Call this before anything is opened or loaded that the first life does
 * not need: process id, standard input and output, and the descriptors from a predecessor stay. If that is impossible,
 * it returns the reason, and the process continues.
 */
export async function startSwapFree(group = new ControlGroup()): Promise<Safety> {
  const [starter, ...found] = process.env[STARTED_AGAIN]?.split(' ') ?? []
  delete process.env[STARTED_AGAIN]
  const safe = group.swapFree()
  if (starter === String(process.pid)) return found.length > 0 ? { ...safe, reason: found.join(' ') } : safe
  const marked = becomeIoFlusher()
  const [program, ...words] = ownCommand() as [string, ...string[]]
  if (!safe.granted && group.path.endsWith('.scope')) {
    const why = await refusalOfSystemd()
    if (why === undefined) return execute('', 'systemd-run', ...SCOPE, program, ...words)
    const reason = `${safe.reason} (systemd-run: ${why})`
    return marked ? execute(reason, program, ...words) : { ...safe, reason }
  }
  const entered = safe.granted ? safe : group.enter()
  return marked || (entered.granted && !safe.granted) ? execute(entered.reason, program, ...words) : entered
}

/** Asked by another process: what it says to this one comes too late. */
async function refusalOfSystemd(): Promise<string | undefined> {
  const { execFile } = await import('node:child_process')
  const { promisify } = await import('node:util')
  try {
    await promisify(execFile)('systemd-run', [...SCOPE, 'true'], { timeout: SYSTEMD_TIMEOUT_MS })
    return undefined
  } catch (failure) {
    const { stderr, message } = failure as { stderr?: string; message: string }
    return (stderr || message).trim().split('\n').at(-1)
  }
}

/** Returns only when it failed. @param found why the program is not swap-free in its next life, either; else empty */
function execute(found: string, program: string, ...words: string[]): Safety {
  process.env[STARTED_AGAIN] = `${process.pid} ${found}`.trim()
  try {
    replaceProcess(program, words, givenDescriptors())
  } catch (failure) {
    delete process.env[STARTED_AGAIN]
    return {
      ...new ControlGroup().swapFree(),
      granted: false,
      reason: `it could not start again: ${program}: ${(failure as Error).message}`,
    }
  }
  throw new Error('execve returned')
}
