// 1,000 peers without a key, and a client with one whose link breaks: about 10 s. The soak cuts it 300 times.
import { expect, it } from 'vitest'
import { besideCrowd, describeCrowd } from '../helpers/crowd.js'

it('a client comes back to its memory through a crowd without keys', async () => {
  const report = await besideCrowd({ peers: 1_000, cuts: 8, pause: 0 })
  console.log(describeCrowd(report))
  expect(report.lost).toBe('')
  expect(report.impaired).toBeUndefined()
  expect(report.resumed).toHaveLength(8)
  expect(report.grown).toBeLessThan(64 * 2 ** 20)
}, 120_000)
