import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { replaceProcess, type Safety } from '../kernel/kernel.js'
import { ControlGroup } from '../kernel/swap-free-group.js'
import { givenDescriptors } from '../upgrade/hand-over-channel.js'
import { ownCommand } from '../upgrade/successor.js'

/** In the environment of a process that was started again: its own number, so that no child takes it for its own. */
const STARTED_AGAIN = 'RDMAKIT_STARTED_AGAIN'
const SCOPE = ['--scope', '--quiet', '--collect', '--property=MemorySwapMax=0', '--']
const SYSTEMD_TIMEOUT_MS = 10_000

/**
 * Keeps this process out of swap as a whole, which takes a start inside of a control group without swap: what a
 * process has before it moves into one stays where it was. Outside of one, the process moves and executes its program
 * again, so call it before anything is opened: number, standard input and output, and what a predecessor gave stay.
 * Where that cannot be, it says why, and the process goes on.
 *
 *   in a group without swap, as a service is             stays there
 *   in the root group                                    a group of its own, which goes when it ends
 *   in a scope, as a session's shell is, under systemd   a scope of its own
 *   in any other                                         stays: whoever made that group counts on it
 */
export async function startSwapFree(group = new ControlGroup()): Promise<Safety> {
  const again = process.env[STARTED_AGAIN] === String(process.pid)
  delete process.env[STARTED_AGAIN]
  const safe = group.swapFree()
  if (safe.granted || again) return safe
  const [program, ...words] = ownCommand() as [string, ...string[]]
  if (group.path.endsWith('.scope')) {
    const why = await refusalOfSystemd()
    return why === undefined
      ? execute('systemd-run', ...SCOPE, program, ...words)
      : { ...safe, reason: `${safe.reason} (systemd-run: ${why})` }
  }
  const entered = group.enter()
  return entered.granted ? execute(program, ...words) : entered
}

/** Asked by another process: what it says to this one comes too late. */
async function refusalOfSystemd(): Promise<string | undefined> {
  try {
    await promisify(execFile)('systemd-run', [...SCOPE, 'true'], { timeout: SYSTEMD_TIMEOUT_MS })
    return undefined
  } catch (failure) {
    const { stderr, message } = failure as { stderr?: string; message: string }
    return (stderr || message).trim().split('\n').at(-1)
  }
}

/** Returns only when it failed. */
function execute(program: string, ...words: string[]): Safety {
  process.env[STARTED_AGAIN] = String(process.pid)
  try {
    replaceProcess(program, words, givenDescriptors())
  } catch (failure) {
    delete process.env[STARTED_AGAIN]
    return {
      ...new ControlGroup().swapFree(),
      granted: false,
      reason: `what it had at its start can be swapped: ${program}: ${(failure as Error).message}`,
    }
  }
  throw new Error('execve returned')
}
