// In place of a backward pass: gradients that are quick to make and whose sums are known, so that what a
// worker pulls can be checked to the last bit.
import { PARAMETERS, part, SLICES } from './model.js'

const RATE = 1 / 64
const KINDS = 101

/** Whole numbers: their sums are exact in whatever order they are added. */
const value = (worker: number, iteration: number, slice: number) =>
  (worker * 31 + iteration * 7 + slice * 13) % KINDS

/** Writes one worker's gradients of a slice; first and last tell whether it is whole and in its place. */
export function fillGradient(gradient: Float32Array, worker: number, iteration: number, slice: number): void {
  const body = value(worker, iteration, slice)
  gradient.fill(body)
  gradient[0] = body + 1
  gradient[gradient.length - 1] = body + 2
}

/** The weights, and the sums of the gradients that have come. */
export class Trainer {
  readonly weights = new Float32Array(PARAMETERS)
  readonly #sums = new Float32Array(PARAMETERS)
  readonly #added = new Uint16Array(SLICES.length)
  readonly #workers: number

  constructor(workers: number) {
    this.#workers = workers
  }

  /** Adds one worker's gradients. @returns true when all workers' are there and the weights are new */
  add(number: number, gradient: Float32Array): boolean {
    const slice = SLICES[number]
    if (slice === undefined) throw new RangeError(`slice ${number}`)
    const sums = part(this.#sums, slice)
    const added = (this.#added[number] as number) + 1
    this.#added[number] = added === this.#workers ? 0 : added
    if (added < this.#workers) {
      if (added === 1) sums.set(gradient)
      else for (let i = 0; i < sums.length; i++) (sums[i] as number) += gradient[i] as number
      return false
    }
    const weights = part(this.weights, slice)
    const scale = RATE / this.#workers
    if (added === 1) sums.fill(0)
    for (let i = 0; i < weights.length; i++)
      (weights[i] as number) -= ((sums[i] as number) + (gradient[i] as number)) * scale
    return true
  }
}

/** @throws Error naming the first weight that is not what so many iterations of so many workers make it */
export function check(weights: Float32Array, workers: number, iterations: number): void {
  for (const [number, slice] of SLICES.entries()) {
    const values = part(weights, slice)
    const [first, body, last] = [1, 0, 2].map((more) => expected(number, more, workers, iterations))
    for (let i = 0; i < values.length; i++) {
      const right = i === values.length - 1 ? last : i === 0 ? first : body
      if (values[i] !== right)
        throw new Error(`element ${i} of slice ${number} is ${values[i]}, not ${right}`)
    }
  }
}

function expected(slice: number, more: number, workers: number, iterations: number): number {
  let weight = 0
  for (let iteration = 0; iteration < iterations; iteration++) {
    let sum = 0
    for (let worker = 0; worker < workers; worker++) sum += value(worker, iteration, slice) + more
    weight = Math.fround(weight - sum * (RATE / workers))
  }
  return weight
}
