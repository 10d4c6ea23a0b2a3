import { join } from 'node:path'
import { top } from './lab/base/paths.js'

/** `growth`: the heap is nearly full, `heap`: it is full, and V8 ends the process; `end`: closing a control socket fails. */
export type ControlFault = 'timer' | 'rejection' | 'growth' | 'heap' | 'end'

/** The environment of a program in which SIGUSR2 brings about a fault that no code of it can catch. */
export function controlFault(fault: ControlFault): Record<string, string> {
  const small = fault === 'growth' || fault === 'heap'
  const heap = small ? ' --max-old-space-size=64' : ''
  return { NODE_OPTIONS: `--import=${join(top, 'test/control-fault.mjs')}${heap}`, TEST_CONTROL_FAULT: fault }
}
