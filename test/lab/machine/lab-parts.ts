import { chooseAccelerator } from './accelerator.js'
import { ensureInitramfs } from './initramfs.js'
import { ensureKernel, type Kernel } from './kernel.js'
import { ensureModules, type Modules } from './modules.js'
import { ensureAgent, ensureArrayWalk } from './native.js'
import { ensurePackages } from './packages.js'
import type { Accelerator } from './qemu.js'

/** What guests are made of, found in the cache or made there. */
export interface LabParts {
  kernel: Kernel
  modules: Modules
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
  const modules = await ensureModules(kernel, say)
  const initramfs = await ensureInitramfs(kernel)
  const accelerator = await chooseAccelerator(kernel, initramfs)
  return { kernel, modules, initramfs, agent, arrayWalk, accelerator }
}
