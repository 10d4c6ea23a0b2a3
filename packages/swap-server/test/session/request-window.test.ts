import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { RequestWindow } from '../../src/server/control-request.js'

const MOST = 64

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance'] })
})
afterEach(() => {
  vi.useRealTimers()
})

/** Asks until it has its turn. */
async function answered(window: RequestWindow, order: number[], which: number): Promise<void> {
  for (let turn = window.turn(); turn !== undefined; turn = window.turn()) await turn
  order.push(which)
}

it('answers so many at once, and again so many when the window is over', async () => {
  const window = new RequestWindow()
  const order: number[] = []
  const all = Array.from({ length: 2 * MOST }, (_, i) => answered(window, order, i))
  expect(order).toHaveLength(MOST)
  vi.advanceTimersByTime(16)
  // One that comes in the new window, before those that wait have been told of it.
  all.push(answered(window, order, 2 * MOST))
  expect(order).toHaveLength(MOST)
  await window.turn()
  await Promise.resolve()
  expect(order).toEqual(Array.from({ length: 2 * MOST }, (_, i) => i))
  vi.advanceTimersByTime(16)
  await Promise.all(all)
  expect(order.at(-1)).toBe(2 * MOST)
})

it('holds up nobody who asks now and then', () => {
  const window = new RequestWindow()
  for (let i = 0; i < 1_000; i++) {
    expect(window.turn()).toBeUndefined()
    vi.advanceTimersByTime(1)
  }
})
