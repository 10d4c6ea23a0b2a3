import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseUri } from '@rdmakit/verbs'

/**
 * KiB that the kernel should keep free for who must not wait. Swap over TCP needs it for each page that it sends or
 * receives, and a socket of this process has no reserve of its own (SOCK_MEMALLOC). The number is that which the
 * kernel itself takes with transparent huge pages; what less costs is in test/lab/README.md.
 */
const WANTED_KIB = 45_056
/** But of a small machine no more than this part. */
const MOST_OF_MEMORY = 1 / 20

const SYSCTL = 'vm.min_free_kbytes'

/** @param servers as given, each with its addresses @returns why swap to them may stall, for people; undefined: it does not */
export function shortReserve(servers: readonly (readonly string[])[], proc = '/proc'): string | undefined {
  if (!servers.flat().some((uri) => parseUri(uri).provider === 'iwarp')) return undefined
  const reserve = Number(textOf(join(proc, 'sys/vm/min_free_kbytes')))
  const total = Number(/^MemTotal:\s+(\d+) kB$/m.exec(textOf(join(proc, 'meminfo')))?.[1])
  const wanted = Math.min(WANTED_KIB, Math.floor(total * MOST_OF_MEMORY))
  // What cannot be read is no number, and less than none.
  return reserve < wanted
    ? `${SYSCTL} is ${reserve}: swap over iwarp:// is slow and stalls when memory is short; run sysctl -w ${SYSCTL}=${wanted}`
    : undefined
}

function textOf(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return 'unknown'
  }
}
