import { describe, expect, it } from 'vitest'
import { describeImpairment, LastResort, nearlyFull } from '../src/process/last-resort.js'

describe('failures that nothing has caught', () => {
  it('are counted, the first is kept, and a timer that fails at each tick does not fill the log', () => {
    let told = 0
    const lastResort = new LastResort((_, tell) => {
      if (tell) told++
    })
    expect(lastResort.impairment).toBeUndefined()
    for (let tick = 0; tick < 1000; tick++) lastResort.failed(new Error(`tick ${tick}`))
    expect(lastResort.impairment).toMatchObject({ reason: 'tick 0', failures: 1000 })
    expect(told).toBe(20)
  })

  it('may be anything that can be thrown', () => {
    const lastResort = new LastResort(() => {})
    lastResort.failed(undefined)
    expect(describeImpairment(lastResort.impairment as never)).toMatch(/has failed, first at .*: undefined$/)
  })
})

it('a heap is nearly full from 85 % on', () => {
  expect([nearlyFull(850, 1000), nearlyFull(851, 1000)]).toEqual([false, true])
})
