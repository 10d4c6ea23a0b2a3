import { UsageError } from '@rdmakit/verbs'
import { expect, it } from 'vitest'
import { openVolume } from '../src/index.js'
import { MIB } from './helpers/swap-servers.js'

it.each([
  ['lanes', 0],
  ['lanes', 65],
  ['lanes', 1.5],
  ['lanes', Number.NaN],
  ['spares', -1],
  ['linger', Number.NaN],
  ['linger', 2 ** 31],
  ['reconnect', Number.NaN],
  ['reconnect', -1],
])('a volume that is opened with %s %d is refused before anything begins', async (name, value) => {
  let begun = false
  const options = {
    servers: [['shm:///nowhere']],
    size: MIB,
    lanes: 1,
    progress: () => {
      begun = true
    },
    [name]: value,
  }
  const none = () => {
    throw new Error('there is no engine')
  }
  const refused = await openVolume(options, none).catch((reason: unknown) => reason)
  expect(refused).toBeInstanceOf(UsageError)
  expect((refused as Error).message).toContain(name)
  expect(begun).toBe(false)
})
