import { scriptedSwap } from './swap-path.js'

/** The kernel's own nbd-client over TCP, and nbdkit's memory plugin behind it. nbd.sh must have run in the client. */
export const nbdkitSwap = scriptedSwap(
  { name: 'nbdkit over TCP', serverProcess: 'nbdkit.pid' },
  'nbdkit-swap.sh',
)
