import { expect, test } from 'vitest'
import { faultsOf, killAnything } from '../kill-anything.js'
import { prepareLab } from '../lab-parts.js'

const seed = 5

// In full, for five minutes and with another order each time: npm run lab -- kill-anything
test('a guest that swaps to two hosts gets every page right whatever is killed, cut off or restarted', async () => {
  const run = await killAnything(await prepareLab(), { seconds: 1, seed, servers: 2 }, console.log)
  console.log(JSON.stringify(run))
  expect(faultsOf(run)).toEqual([])
}, 600_000)
