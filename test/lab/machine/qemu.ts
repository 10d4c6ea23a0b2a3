import type { Kernel } from './kernel.js'

/** What a guest's processor is: the host's, or emulated. */
export type Accelerator = 'kvm' | 'tcg'

export interface Machine {
  accelerator: Accelerator
  kernel: Kernel
  initramfs: string
  memoryMiB: number
  cpus: number
  /** Words for guest/init and guest/setup.sh. */
  environment: Readonly<Record<string, string>>
  /** QEMU's name for where the serial console goes: stdio, or file:PATH. */
  console: string
  /** Socket on which the host listens for the agent. */
  agentSocket?: string
  disk?: { file: string; direct: boolean }
  wires?: readonly Wire[]
}

/** One end of a wire to another guest; a guest's first is its eth0. */
export interface Wire {
  socket: string
  end: WireEnd
  /** Number of the wire among those that meet in one network; 0 by default. Addresses are made of it. */
  number?: number
}

/** The end that opens the wire boots first; they are equal after that. */
export type WireEnd = 'listen' | 'connect'

/** The command line of one guest, QEMU's own name first. */
export function qemuArguments(machine: Machine): string[] {
  const words = Object.entries(machine.environment).map(([name, value]) => `${name}="${value}"`)
  // The guest runs only our own programs, and mitigations cost an emulated guest much of its speed.
  // On a busy host the kernel's look at whether the timer works takes too long, and ends in a panic. With several
  // processors it would not believe their time-stamp counters, which are one, and read a device for each time.
  // Programs that start at the addresses of their last time find their translated code in the emulator's cache: fork and
  // exec take two fifths of the time.
  const fixed = [
    'console=ttyS0',
    'panic=-1',
    'quiet',
    'mitigations=off',
    'random.trust_cpu=on',
    'no_timer_check',
    'tsc=reliable',
    'norandmaps',
  ]
  const append = [...fixed, ...words]
  // The emulator calls `rep movsb` fast and does it byte by byte; without the flags the kernel copies by words.
  const processor = machine.accelerator === 'tcg' ? 'max,-erms,-fsrm' : 'max'
  // Without the possibility of a second processor the emulator turns a locked instruction into a plain one, and with
  // it the barrier between "here is a packet" and "does the other side wait for one?". But QEMU's own threads are
  // other processors: now and then each side believed that the other one was awake, and the wire stood still for
  // good.
  const most = Math.max(2, machine.cpus)
  const command = [
    // QEMU dies with this process, however this process dies.
    ...['setpriv', '--pdeathsig', 'KILL', 'qemu-system-x86_64'],
    ...['-accel', machine.accelerator === 'tcg' ? 'tcg,thread=multi' : 'kvm'],
    ...['-cpu', processor, '-smp', `${machine.cpus},maxcpus=${most}`, '-m', String(machine.memoryMiB)],
    ...['-nodefaults', '-display', 'none', '-no-reboot', '-serial', machine.console],
    ...['-kernel', machine.kernel.image, '-initrd', machine.initramfs, '-append', append.join(' ')],
    ...['-virtfs', 'local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap'],
  ]
  if (machine.agentSocket !== undefined) {
    command.push('-chardev', `socket,id=agent,path=${machine.agentSocket}`)
    command.push('-device', 'virtio-serial-pci', '-device', 'virtserialport,chardev=agent,nr=1')
  }
  if (machine.disk) {
    const cache = machine.disk.direct ? 'none' : 'writeback'
    command.push('-drive', `file=${machine.disk.file},format=raw,if=none,id=disk,cache=${cache}`)
    command.push('-device', 'virtio-blk-pci,drive=disk')
  }
  for (const [index, { socket, end, number = 0 }] of (machine.wires ?? []).entries()) {
    const server = end === 'listen' ? 'on' : 'off'
    const mac = `52:54:00:00:77:${(2 * number + (end === 'listen' ? 1 : 2)).toString(16).padStart(2, '0')}`
    command.push('-netdev', `stream,id=wire${index},server=${server},addr.type=unix,addr.path=${socket}`)
    // Each receive buffer takes a whole packet. With several to a packet QEMU before 9.1 may see some, not enough,
    // and wait for ever to be told of more ("virtio-net: fix network stall at the host side waiting for kick").
    command.push('-device', `virtio-net-pci,netdev=wire${index},host_mtu=9000,mrg_rxbuf=off,mac=${mac}`)
  }
  return command
}
