// Requests both ways, all outstanding at once, some of them with calls back and some that are never answered in time.
import { expect } from 'vitest'
import type { RingConnection } from '../../src/index.js'
import { requestAllowance, requestCost } from '../../src/requests/allowance.js'
import { HANG_MS } from './processes.js'

const LENGTH = 16
/** milliseconds that those wait for their answer that get none */
const SLOW_MS = 500

/** The behaviour of a call's handler. */
enum Kind {
  plain = 0,
  /** it calls back before it answers */
  nested = 1,
  /** it answers when its caller has given up */
  slow = 2,
}

export interface Outcome {
  /** answers with the right bytes */
  readonly right: number
  readonly timedOut: number
  /** of those, that were told to be slow */
  readonly slow: number
  readonly wrong: readonly string[]
}

/**
 * Makes `count` requests from each end, and answers the first when all are outstanding, both ways. The rings are 1 MiB.
 * @param seed of which of them are slow (1 %), or call back (10 %)
 */
export async function outstanding(
  ends: { readonly a: RingConnection; readonly b: RingConnection },
  count: number,
  seed: number,
): Promise<Outcome> {
  const limit = requestAllowance(2 ** 20)
  const wrong: string[] = []
  let [right, timedOut, slow, begun] = [0, 0, 0, 0]
  const random = generator(seed)
  const [all, openAll] = gate()
  const [late, openLate] = gate()
  for (const end of [ends.a, ends.b])
    end.handle(async (request) => {
      const data = request.copy()
      const kind = data[4] as Kind
      if (kind !== Kind.slow) begun++
      await (kind === Kind.slow ? late : all)
      if (kind !== Kind.nested) return data
      return await end.request(call(0, Kind.plain, data[0] as number), { timeout: HANG_MS })
    })
  const ask = async (from: RingConnection, number: number) => {
    const chosen = random() % 100
    const kind = chosen < 1 ? Kind.slow : chosen < 11 ? Kind.nested : Kind.plain
    if (kind === Kind.slow) slow++
    const question = call(number, kind, number & 0xff)
    try {
      const answer = await from.request(question, { timeout: kind === Kind.slow ? SLOW_MS : HANG_MS })
      const same = answer.length === LENGTH && answer[0] === (number & 0xff)
      if (same && kind !== Kind.slow) right++
      else wrong.push(`${number}, kind ${kind}, is answered`)
    } catch (failure) {
      if (kind === Kind.slow && (failure as { code?: string }).code === 'ETIMEDOUT') timedOut++
      else wrong.push(`${number}, kind ${kind}: ${failure}`)
    }
  }
  const asked: Promise<void>[] = []
  for (let number = 0; number < count; number++) asked.push(ask(ends.a, number), ask(ends.b, number))
  // All have been asked; as many have come as there is memory for, or all but slow ones that were given up before.
  const full = () =>
    [ends.a, ends.b].every((end) => end.statistics().requestMemory > limit - requestCost(LENGTH))
  await expect.poll(() => full() || begun === 2 * count - slow, { timeout: HANG_MS }).toBe(true)
  openAll()
  await Promise.all(asked)
  openLate()
  return { right, timedOut, slow, wrong: wrong.slice(0, 10) }
}

function call(number: number, kind: Kind, tag: number): Uint8Array {
  const bytes = new Uint8Array(LENGTH)
  new DataView(bytes.buffer).setUint32(5, number)
  bytes[0] = tag
  bytes[4] = kind
  return bytes
}

function gate(): [Promise<void>, () => void] {
  let open!: () => void
  const opened = new Promise<void>((resolve) => {
    open = resolve
  })
  return [opened, open]
}

/** Numbers of 32 bits that follow from `seed` (xorshift, Marsaglia 2003). */
function generator(seed: number): () => number {
  let state = seed | 1
  return () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return state >>> 0
  }
}
