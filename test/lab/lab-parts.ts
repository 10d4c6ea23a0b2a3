import { type Accelerator, chooseAccelerator } from './accelerator.js'
import { ensureInitramfs } from './initramfs.js'
import { ensureKernel, type Kernel } from './kernel.js'
import { ensureAgent, ensureArrayWalk } from './native.js'
import { ensurePackages } from './packages.js'
import { ensureSiw } from './siw.js'

/** What guests are made of, found in the cache or made there. */
export interface LabParts {
  kernel: Kernel
  /** The kernel's iWARP driver; guests see it at the same path. */
  siw: string
  initramfs: string
  agent: string
  /** The micro-benchmark; guests see it at the same path. */
  arrayWalk: string
  accelerator: Accelerator
}

/** Gets everything ready to boot guests; throws NoGuestError where none can run. */
export async function prepareLab(say: (line: string) => void = () => {}): Promise<LabParts> {
  ensurePackages(say)
  const [kernel, agent, arrayWalk] = await Promise.all([ensureKernel(say), ensureAgent(), ensureArrayWalk()])
  const siw = await ensureSiw(kernel, say)
  const initramfs = await ensureInitramfs(kernel)
  const accelerator = await chooseAccelerator(kernel, initramfs)
  return { kernel, siw, initramfs, agent, arrayWalk, accelerator }
}
