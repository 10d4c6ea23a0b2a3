// When a connection pings, gives up and rests, on a clock of the test's own.
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Liveness, type LivenessOptions, livenessSettings } from '../../src/connection/liveness.js'

/** A connection whose clock and counters the test moves. */
function watched(options: LivenessOptions) {
  const told: string[] = []
  const state = { heard: 0, activity: 0, busy: false, now: 1000 }
  const liveness = new Liveness(livenessSettings(options), {
    heard: () => state.heard,
    activity: () => state.activity,
    busy: () => state.busy,
    ping: () => told.push('ping'),
    dead: (silence) => told.push(`dead ${silence}`),
    idle: (isIdle) => told.push(isIdle ? 'idle' : 'busy'),
  })
  liveness.begin(state.now)
  /** The next look, so many milliseconds late. */
  const look = (late = 0) => {
    state.now += liveness.every + late
    liveness.look(state.now, late)
    return told.splice(0)
  }
  const looks = (count: number) => Array.from({ length: count }, () => look().join())
  return { state, liveness, look, looks }
}

describe('a silent peer', () => {
  const options = { heartbeat: 100, deadAfter: 300 }

  it('is pinged after a heartbeat and counts as dead after deadAfter', () => {
    const { looks, liveness } = watched(options)
    expect(liveness.every).toBe(50)
    expect(looks(6)).toEqual(['', 'ping', 'ping', 'ping', 'ping', 'dead 300'])
  })

  it('that is heard is not pinged, and its silence begins anew', () => {
    const { state, looks } = watched(options)
    looks(5)
    state.heard++
    expect(looks(3)).toEqual(['', '', 'ping'])
    for (let i = 0; i < 20; i++) {
      state.heard++
      expect(looks(1)).toEqual([''])
    }
  })

  it('is pinged before it counts as dead, however short deadAfter', () => {
    const { look } = watched({ heartbeat: 100, deadAfter: 101 })
    expect([look(), look(50), look()]).toEqual([[], ['ping'], ['dead 200']])
  })

  it('does not count as dead for time in which this process did not run', () => {
    const { look, looks } = watched(options)
    // Ten minutes late are two looks of silence, and a ping goes out before anything is judged.
    expect(look(600_000)).toEqual(['ping'])
    expect(looks(3)).toEqual(['ping', 'ping', 'ping'])
    expect(looks(1)).toEqual(['dead 300'])
  })

  it('is not judged at a late look: its answer may lie there', () => {
    const { look, looks, state } = watched(options)
    looks(5)
    expect(look(10_000)).toEqual(['ping'])
    state.heard++
    expect(looks(1)).toEqual([''])
  })

  it('is judged at last, also when every look is late', () => {
    const { look } = watched(options)
    const seen = Array.from({ length: 6 }, () => look(1000).join())
    expect(seen.filter((one) => one.startsWith('dead'))).not.toEqual([])
  })

  it('counts as dead only after a ping that it had a look to answer, whatever the delays', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 10, max: 1000 }),
        fc.integer({ min: 1, max: 5000 }),
        fc.array(fc.record({ late: fc.nat(5000), hears: fc.boolean() }), { maxLength: 40 }),
        (heartbeat, more, steps) => {
          const { look, state } = watched({ heartbeat, deadAfter: heartbeat + more })
          let pinged = false
          let since = state.now
          for (const { late, hears } of steps) {
            if (hears) {
              state.heard++
              pinged = false
              since = state.now
            }
            const told = look(late)
            if (told.some((one) => one.startsWith('dead'))) {
              expect(pinged).toBe(true)
              expect(state.now - since).toBeGreaterThanOrEqual(heartbeat + more)
              return
            }
            pinged ||= told.includes('ping')
          }
        },
      ),
    )
  })
})

describe('an idle connection', () => {
  const options = { heartbeat: 0, idleTimeout: 100 }

  it('says so once, and again that it is not', () => {
    const { looks, state } = watched(options)
    expect(looks(8)).toEqual(['', '', '', 'idle', '', '', '', ''])
    state.activity++
    expect(looks(6)).toEqual(['busy', '', '', '', 'idle', ''])
  })

  it('is none while something is under way', () => {
    const { looks, state } = watched(options)
    state.busy = true
    expect(looks(10).join('')).toBe('')
    state.busy = false
    expect(looks(4)).toEqual(['', '', '', 'idle'])
  })

  it('is looked at often enough for both timeouts', () => {
    expect(watched({ heartbeat: 1000, idleTimeout: 100 }).liveness.every).toBe(25)
    expect(watched({ heartbeat: 100, idleTimeout: 1000 }).liveness.every).toBe(50)
  })
})

describe('liveness options', () => {
  it('have their defaults', () => {
    expect(livenessSettings({})).toEqual({
      heartbeat: 1250,
      deadAfter: 4375,
      idleTimeout: 0,
      closeWhenIdle: false,
    })
    expect(livenessSettings({ heartbeat: 20 }).deadAfter).toBe(70)
    const { heartbeat, deadAfter } = livenessSettings({})
    expect(deadAfter + heartbeat / 2, 'when a dead peer is found at the latest').toBeLessThanOrEqual(5000)
  })

  it.each([
    ['heartbeat', { heartbeat: 5 }],
    ['heartbeat', { heartbeat: Number.NaN }],
    ['heartbeat', { heartbeat: 4_000_000 }],
    ['deadAfter', { heartbeat: 100, deadAfter: 100 }],
    ['deadAfter', { heartbeat: 100, deadAfter: 1e9 }],
    ['deadAfter', { heartbeat: 0, deadAfter: 100 }],
    ['idleTimeout', { idleTimeout: 1 }],
    ['idleTimeout', { idleTimeout: -1 }],
    ['closeWhenIdle', { closeWhenIdle: true }],
  ])('out of range name the option: %s', (name, options) => {
    expect(() => livenessSettings(options)).toThrow(name)
  })
})
