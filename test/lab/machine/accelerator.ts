import { accessSync, constants, readFileSync } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { LocalShell } from '../base/local-shell.js'
import { cache } from '../base/paths.js'
import type { Kernel } from './kernel.js'
import { type Accelerator, qemuArguments } from './qemu.js'

const probeLimitMs = 6_000

/**
 * KVM where a guest really starts under it, else TCG, QEMU's emulation. The device node alone says
 * nothing: nested virtualisation may offer /dev/kvm and then hang on the guest's first instructions.
 * So a guest is booted once per boot of this machine; RDMAKIT_LAB_ACCEL=tcg or kvm skips that.
 */
export async function chooseAccelerator(kernel: Kernel, initramfs: string): Promise<Accelerator> {
  const wish = process.env.RDMAKIT_LAB_ACCEL
  if (wish === 'kvm' || wish === 'tcg') return wish
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK)
  } catch {
    return 'tcg'
  }
  const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
  const file = join(cache, 'accelerator')
  const [probedBoot, answer] = (await readFile(file, 'utf8').catch(() => '')).split(' ')
  if (probedBoot === boot && (answer === 'kvm' || answer === 'tcg')) return answer

  const accelerator = (await startsUnderKvm(kernel, initramfs)) ? 'kvm' : 'tcg'
  await mkdir(cache, { recursive: true })
  await writeFile(file, `${boot} ${accelerator}`)
  return accelerator
}

async function startsUnderKvm(kernel: Kernel, initramfs: string): Promise<boolean> {
  const qemu = qemuArguments({
    accelerator: 'kvm',
    kernel,
    initramfs,
    memoryMiB: 256,
    cpus: 1,
    environment: { lab_probe: '1' },
    console: 'stdio',
  })
  try {
    const { stdout } = await new LocalShell().exec(qemu, { deadlineMs: probeLimitMs })
    return stdout.includes('guest runs')
  } catch {
    return false
  }
}
