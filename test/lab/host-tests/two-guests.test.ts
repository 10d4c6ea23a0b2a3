import { afterAll, beforeAll, expect, test } from 'vitest'
import { prepareLab } from '../lab-parts.js'
import { GuestPair } from '../pair.js'
import { rping } from '../rping.js'

let pair: GuestPair

beforeAll(async () => {
  pair = await GuestPair.boot(await prepareLab())
})

afterAll(async () => {
  await pair?.powerOff()
})

test('rping connects one guest to the other over Soft-RoCE', async () => {
  const output = await rping(pair.server, pair.client, GuestPair.serverAddress, 5)
  expect(output).toMatch(/ping data: rdma-ping-4/)
})
