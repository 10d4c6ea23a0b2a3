// The parameters of a real model, as one vector, and how they are cut into messages.
import { readFileSync } from 'node:fs'

interface Model {
  readonly parameters: number
  /** name and shape */
  readonly tensors: readonly (readonly [string, readonly number[]])[]
}

const model: Model = JSON.parse(
  readFileSync(new URL('../../parameter-server/resnet50.json', import.meta.url), 'utf8'),
)

/** Elements of all tensors, or the first so many of them as RDMAKIT_PARAMETERS says. */
export const PARAMETERS = Math.min(
  model.parameters,
  Number(process.env.RDMAKIT_PARAMETERS ?? model.parameters),
)

/** Part of one tensor, or all of it: what one message carries. In elements. */
export interface Slice {
  readonly offset: number
  readonly length: number
}

/** At most 256 KiB: the ring's largest message is half its capacity. */
const MOST_ELEMENTS = 65_536

/** Every tensor in order; those that are too large for one message in parts. */
export const SLICES: readonly Slice[] = cut()

function cut(): Slice[] {
  const slices: Slice[] = []
  let offset = 0
  for (const [, shape] of model.tensors) {
    const end = Math.min(PARAMETERS, offset + shape.reduce((product, size) => product * size, 1))
    while (offset < end) {
      const length = Math.min(MOST_ELEMENTS, end - offset)
      slices.push({ offset, length })
      offset += length
    }
  }
  if (offset !== PARAMETERS) throw new Error(`the tensors have ${offset} parameters, not ${PARAMETERS}`)
  return slices
}

/** A slice by the number that came with a message. @throws RangeError when there is no such slice */
export function sliceOf(number: number): Slice {
  const slice = SLICES[number]
  if (slice === undefined) throw new RangeError(`slice ${number} of ${SLICES.length}`)
  return slice
}

/** The elements of a slice in a vector of all parameters. */
export function part(vector: Float32Array, { offset, length }: Slice): Float32Array {
  return vector.subarray(offset, offset + length)
}

/** The same memory as bytes. */
export function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

/** The same memory as elements. @throws RangeError when it is not as long as the slice */
export function elementsOf(bytes: Uint8Array, { length }: Slice): Float32Array {
  if (bytes.length !== length * 4) throw new RangeError(`${bytes.length} bytes for ${length} elements`)
  // What comes in pieces may begin anywhere; an element may not.
  const aligned = bytes.byteOffset % 4 === 0 ? bytes : Uint8Array.from(bytes)
  return new Float32Array(aligned.buffer, aligned.byteOffset, length)
}
