import { expect, it } from 'vitest'
import { effort } from '../../effort.js'
import { besideCrowd, describeCrowd } from '../helpers/crowd.js'

it('a client that is cut 1 s after each resumption is never lost beside a crowd without keys', async () => {
  const cuts = effort(300)
  const report = await besideCrowd({ peers: 1_000, cuts, pause: 1_000 })
  console.log(describeCrowd(report))
  expect(report.lost).toBe('')
  expect(report.impaired).toBeUndefined()
  expect(report.resumed).toHaveLength(cuts)
  expect(report.grown).toBeLessThan(64 * 2 ** 20)
}, 3_600_000)
