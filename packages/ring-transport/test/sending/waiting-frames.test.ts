// What of a message in parts is laid out when it is given up: its end, only if there was a beginning.
import { expect, it } from 'vitest'
import { TYPE } from '../../src/native.js'
import { WaitingFrames } from '../../src/sending/waiting-frames.js'

const PART = 100

/** Frames that are laid out while there is room for so many. */
function frames(room: number) {
  const laid: { type: number; length: number }[] = []
  const layout = {
    part: PART,
    isFrame: (bytes: Uint8Array) => bytes.length <= PART,
    requireFits: () => {},
    lay: (type: number, _correlation: number, _immediate: number, bytes: Uint8Array) => {
      if (laid.length >= room) return false
      laid.push({ type, length: bytes.length })
      return true
    },
  }
  const made = {
    laid,
    layout,
    grow: (by: number) => {
      room += by
    },
    waiting: new WaitingFrames(layout, () => void made.waiting.send()),
  }
  return made
}

it.each([
  ['before its first part found room', 0, []],
  [
    'behind its first part',
    1,
    [
      { type: TYPE.part, length: PART },
      { type: TYPE.last, length: 0 },
    ],
  ],
])('one that is given up %s', async (_, room, expected) => {
  const { laid, grow, waiting } = frames(room)
  let wanted = true
  const sent = waiting.borrow({ type: TYPE.data }, new Uint8Array(3 * PART), () => wanted)
  expect(waiting.send()).toBe(false)
  wanted = false
  grow(10)
  expect(waiting.send()).toBe(true)
  await sent
  expect(laid).toEqual(expected)
})

it('one whose bytes are taken away before its first part found room fails, and nothing of it is sent', async () => {
  const { laid, grow, waiting } = frames(0)
  const bytes = new Uint8Array(3 * PART)
  const sent = waiting.borrow({ type: TYPE.data }, bytes, () => true)
  expect(waiting.send()).toBe(false)
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] })
  grow(10)
  expect(waiting.send()).toBe(true)
  await expect(sent).rejects.toThrow('detached')
  expect(laid).toEqual([])
})

it('those that come while the others are sent follow them, also when some of these are not wanted any more', async () => {
  const { laid, grow, waiting } = frames(0)
  const late: Promise<void>[] = []
  const came = (length: number) =>
    waiting.wait(
      { type: TYPE.data },
      new Uint8Array(length),
      () => true,
      () => {},
    )
  // As many as are kept before it is looked which of them are still wanted.
  const sent = Array.from({ length: 64 }, (_, i) =>
    waiting.wait(
      { type: TYPE.data },
      new Uint8Array(1),
      () => i >= 10 || laid.length === 0,
      // An answer that leaves makes room for the next request, whose handler answers at once.
      () => i > 50 && late.push(came(2)),
    ),
  )
  expect(waiting.send()).toBe(false)
  laid.push({ type: TYPE.data, length: 0 })
  grow(1000)
  expect(waiting.send()).toBe(true)
  expect(waiting.count).toBe(0)
  await Promise.all([...sent, ...late])
  expect(laid.filter(({ length }) => length === 1)).toHaveLength(54)
  expect(laid.filter(({ length }) => length === 2)).toHaveLength(13)
  expect(laid.at(-1)?.length).toBe(2)
})

it('copies of those that are not wanted any more are dropped, however few they are', async () => {
  const { waiting } = frames(0)
  let wanted = true
  const came = () =>
    waiting.wait(
      { type: TYPE.data },
      new Uint8Array(2 ** 20),
      () => wanted,
      () => {},
    )
  const given = Array.from({ length: 20 }, came)
  expect(waiting.count).toBe(20)
  wanted = false
  // Twice as much as when it was last looked; then at four megabytes.
  for (let i = 0; i < 20; i++) void came()
  expect(waiting.count).toBeLessThanOrEqual(4)
  await Promise.all(given)
})
