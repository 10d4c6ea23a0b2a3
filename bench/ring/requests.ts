// Requests, each answered by as many bytes. The first byte of an answer says that it is one.
import type { Answer, Requester } from './endpoint.js'
import { type Driver, message } from './traffic.js'

const QUESTION = 0
const ANSWER = 1
/** Requests under way at a time where many are made, and what they take at most. */
const UNDER_WAY = 64
const UNDER_WAY_BYTES = 4 * 2 ** 20

/** The answering end. It throws for a request that is not of `size` bytes. */
export function answering(size: number): Answer {
  const answer = message(size, ANSWER)
  return (bytes, offset, length) => {
    if (length !== size || bytes[offset] !== QUESTION)
      throw new Error(`a request of ${length} bytes, not ${size}`)
    return answer
  }
}

export function requests(requester: Requester, size: number): Driver {
  const question = message(size, QUESTION)
  const ask = async () => {
    const answer = await requester.request(question)
    if (answer.length !== size || answer[0] !== ANSWER)
      throw new Error(`an answer of ${answer.length} bytes, not ${size}`)
  }
  return {
    async roundTrips(rounds, times) {
      let begin = performance.now()
      for (let round = 0; round < rounds; round++) {
        await ask()
        if (times === undefined) continue
        const now = performance.now()
        times[round] = now - begin
        begin = now
      }
    },

    async burst(count) {
      let left = count
      const oneByOne = async () => {
        while (left-- > 0) await ask()
      }
      const begin = performance.now()
      const underWay = Math.min(UNDER_WAY, Math.floor(UNDER_WAY_BYTES / size))
      await Promise.all(Array.from({ length: underWay }, oneByOne))
      return performance.now() - begin
    },
  }
}
