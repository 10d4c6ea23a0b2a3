import { GuestDiedError, NoGuestError } from './base/errors.js'
import type { Shell } from './base/shell.js'
import { type LabParts, prepareLab } from './machine/lab-parts.js'
import { GuestPair } from './machine/pair.js'
import { RemoteSwap, rdmakitSwap, type SwapService } from './swap/remote-swap.js'
import { type Walk, walkArray, withSwapOn } from './swap/swap.js'

const mebibyte = 1024 * 1024
const bytes = 256 * mebibyte
const limitBytes = bytes / 2

export interface Demo {
  localMemory: Walk
  remoteSwap: Walk
  localDisk: Walk
  /** What the server's RDMA device received meanwhile; a page out takes at least one. */
  packets: number
}

/**
 * Remote swap between two machines, told as it happens. Throws NoGuestError where no guest can
 * run, and an Error when a page was wrong or swap was not really used.
 */
export async function guestDemo(
  service: SwapService = rdmakitSwap(`rdma://${GuestPair.serverAddress}:7471`, '640M', '512M'),
  print: (line: string) => void = console.log,
): Promise<Demo> {
  const start = performance.now()
  const say = (line: string): void =>
    print(`[${((performance.now() - start) / 1000).toFixed(1).padStart(5)} s] ${line}`)

  say('booting two guests: "server" has memory to spare, "client" has too little')
  const parts = await prepareLab(say)
  await using pair = await bootPair(parts)
  say(
    `both are up (QEMU, ${parts.accelerator}); Soft-RoCE gives each an RDMA device on the wire between them`,
  )
  const { server, client } = pair
  const walk = { program: parts.arrayWalk, bytes }

  say(`client: write ${bytes / mebibyte} MiB of integers, read them back, verify: all in local memory`)
  const localMemory = await walkArray(client, walk)
  say(`client: ${summary(localMemory)}`)

  await client.run(['sh', 'test/lab/guest/nbd.sh'])
  say(`server: ${show(service.serve)}`)
  say(`client: ${show(service.attach)}`)
  const packetsBefore = await receivedPackets(server)
  const swap = await RemoteSwap.attach(server, client, service)
  let remoteSwap: Walk
  try {
    say(`client: the same with ${limitBytes / mebibyte} MiB of memory, the rest in the server's memory`)
    remoteSwap = await walkArray(client, { ...walk, limitBytes })
  } catch (error) {
    await swap.detach().catch(() => {})
    throw error
  }
  say(`client: ${summary(remoteSwap)}`)
  const packets = (await receivedPackets(server)) - packetsBefore
  say(`server: its RDMA device received ${count(packets)} packets`)
  await swap.detach()
  say('client: swap is off, the device detached; server: stopped')

  say(`client: the same with ${limitBytes / mebibyte} MiB of memory, the rest on a local disk`)
  await client.run(['sh', 'test/lab/guest/disk.sh'])
  const localDisk = await withSwapOn(client, '/dev/vda', () => walkArray(client, { ...walk, limitBytes }))
  say(`client: ${summary(localDisk)}`)

  const demo = { localMemory, remoteSwap, localDisk, packets }
  print(`\n${table(demo)}\n`)
  check(demo)
  if (parts.accelerator === 'tcg') {
    print('Both processors and the wire between them are emulated here, the disk is the real one.\n')
  }
  const { pagesOut, pagesIn } = remoteSwap
  print(
    `Proved: ${bytes / mebibyte} MiB lived in ${limitBytes / mebibyte} MiB of memory; ` +
      `${count(pagesOut)} pages went out over RDMA to another machine's memory, ` +
      `${count(pagesIn)} came back, 0 wrong.`,
  )
  return demo
}

/** A boot that fails here means that this machine runs no guests, whatever the reason. */
async function bootPair(parts: LabParts): Promise<GuestPair> {
  try {
    return await GuestPair.boot(parts, {
      server: { memoryMiB: 2048 },
      client: { memoryMiB: 1024, diskMiB: 512 },
    })
  } catch (error) {
    if (error instanceof GuestDiedError) throw new NoGuestError(error.message, { cause: error })
    throw error
  }
}

/** Packets that the guest's Soft-RoCE device took from the wire. */
async function receivedPackets(shell: Shell): Promise<number> {
  return Number(await shell.run(['cat', '/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts']))
}

function check({ localMemory, remoteSwap, localDisk, packets }: Demo): void {
  for (const [name, walk] of Object.entries({ localMemory, remoteSwap, localDisk })) {
    if (walk.wrongPages > 0) throw new Error(`${name}: ${count(walk.wrongPages)} pages came back wrong`)
  }
  // Pages that do not fit have to leave and come back at least once, less those that the kernel kept.
  const least = 0.9 * ((bytes - limitBytes) / 4096)
  if (remoteSwap.pagesOut < least || remoteSwap.pagesIn < least) {
    throw new Error('the program hardly swapped: the memory limit did not hold')
  }
  if (packets < remoteSwap.pagesOut) throw new Error('the pages did not travel over RDMA')
}

function table({ localMemory, remoteSwap, localDisk }: Demo): string {
  const row = (...cells: readonly string[]): string =>
    cells.map((cell, column) => (column === 0 ? cell.padEnd(14) : cell.padStart(13))).join('')
  const line = (name: string, walk: Walk): string =>
    row(name, walk.seconds.toFixed(1), ...[walk.pagesOut, walk.pagesIn, walk.wrongPages].map(count))
  return [
    row('', 'seconds', 'pages out', 'pages in', 'wrong pages'),
    line('local memory', localMemory),
    line('remote swap', remoteSwap),
    line('local disk', localDisk),
  ].join('\n')
}

function summary(walk: Walk): string {
  const wrote = `wrote in ${walk.writeSeconds.toFixed(1)} s, read back in ${walk.readSeconds.toFixed(1)} s`
  return `${wrote}; ${count(walk.pagesOut)} pages out, ${count(walk.pagesIn)} in, ${count(walk.wrongPages)} wrong`
}

function count(number: number): string {
  return number.toLocaleString('en-US')
}

function show(command: SwapService['serve']): string {
  return typeof command === 'string' ? command : command.join(' ')
}
