import { expect, test } from 'vitest'
import { prepareLab } from '../lab-parts.js'
import { faultsOf, memoryStorm } from '../memory-storm.js'

// In full, for five minutes: npm run lab -- memory-storm
test('a guest without memory to spare swaps on: no deadlock, no wrong page, no allocation on the page path', async () => {
  const storm = await memoryStorm(await prepareLab(), 25)
  console.log(`a storm of 25 s: ${JSON.stringify(storm)}`)
  expect(faultsOf(storm)).toEqual([])
}, 300_000)
