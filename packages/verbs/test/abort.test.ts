// Those who wait for one AbortSignal share a listener, and know nothing of each other.
import { execFile } from 'node:child_process'
import { getEventListeners } from 'node:events'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { onAbort } from '../src/internal.js'

describe('callbacks of one signal', () => {
  it('are each called once, of one listener, but for those that were taken back', () => {
    const abort = new AbortController()
    const called: number[] = []
    const stops = [0, 1, 2, 3].map((i) => onAbort(abort.signal, () => called.push(i)))
    expect(getEventListeners(abort.signal, 'abort')).toHaveLength(1)
    stops[1]?.()
    stops[1]?.()
    abort.abort()
    abort.abort()
    expect(called).toEqual([0, 2, 3])
    for (const stop of stops) stop()
    expect(getEventListeners(abort.signal, 'abort')).toHaveLength(0)
  })

  it('may take another one back, which is then not called', () => {
    const abort = new AbortController()
    const called: string[] = []
    onAbort(abort.signal, () => {
      called.push('first')
      stop()
    })
    const stop = onAbort(abort.signal, () => called.push('second'))
    onAbort(abort.signal, () => called.push('third'))
    abort.abort()
    expect(called).toEqual(['first', 'third'])
  })

  it('are all called where some throw, and what these throw is an uncaught exception each', async () => {
    const program = `
      import { onAbort } from ${JSON.stringify(new URL('../dist/internal.js', import.meta.url).href)}
      process.on('uncaughtException', ({ message }) => console.log(message))
      const abort = new AbortController()
      for (const name of ['first', 'second', 'third', 'fourth'])
        onAbort(abort.signal, () => {
          console.log(name)
          if (name !== 'fourth') throw new Error(name + ' failed')
        })
      abort.abort()
      console.log('aborted')`
    const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', program])
    expect(stdout.trim().split('\n')).toEqual([
      'first',
      'second',
      'third',
      'fourth',
      'aborted',
      'first failed',
      'second failed',
      'third failed',
    ])
  })
})
