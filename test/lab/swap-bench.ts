import type { LabParts } from './lab-parts.js'
import { walkOverNbdkit } from './nbdkit-swap.js'
import { GuestPair } from './pair.js'
import { RemoteSwap, rdmakitSwap } from './remote-swap.js'
import { type Walk, walkArray } from './swap.js'

const mebibyte = 1024 * 1024
const bytes = 256 * mebibyte
const rounds = 2

/**
 * The thesis's micro-benchmark, 256 MiB under a limit of 128 MiB, between two guests on one wire: our
 * remote swap over rxe beside the kernel's nbd-client on nbdkit's memory plugin over TCP. The two run in
 * turn, so that the machine's drift hits both.
 */
export async function swapBench(parts: LabParts, print: (line: string) => void): Promise<void> {
  await using pair = await GuestPair.boot(parts)
  const { server, client } = pair
  const walk = { program: parts.arrayWalk, bytes, limitBytes: bytes / 2 }
  const address = GuestPair.serverAddress
  await client.run(['sh', 'test/lab/guest/nbd.sh'])
  const results: { ours: Walk; nbdkit: Walk }[] = []
  for (let round = 0; round < rounds; round++) {
    const swap = await RemoteSwap.attach(
      server,
      client,
      rdmakitSwap(`rdma://${address}:7471`, '512M', '512M'),
    )
    const ours = await walkArray(client, walk)
    await swap.detach()
    print(line('rdmakit over rxe', ours))
    const nbdkit = await walkOverNbdkit(server, client, { ...walk, address })
    print(line('nbdkit over TCP', nbdkit))
    results.push({ ours, nbdkit })
  }
  const ratios = results.map(({ ours, nbdkit }) => ours.seconds / nbdkit.seconds)
  print(`rdmakit / nbdkit, seconds: ${ratios.map((ratio) => ratio.toFixed(2)).join(', ')}`)
}

function line(
  name: string,
  { seconds, writeSeconds, readSeconds, pagesOut, pagesIn, wrongPages }: Walk,
): string {
  const times = `${seconds.toFixed(1)} s (write ${writeSeconds.toFixed(1)}, read ${readSeconds.toFixed(1)})`
  return `${name.padEnd(18)} ${times}, ${pagesOut} pages out, ${pagesIn} in, ${wrongPages} wrong`
}
