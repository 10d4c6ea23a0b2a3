import { expect, test } from 'vitest'
import { initialize, resolve } from '../against/resolve.js'

const asked = (specifier: string) => {
  initialize('/other')
  return resolve(specifier, { parentURL: 'file:///this/bench/dist/ring/ring.js' }, (name, context) => [
    name,
    context.parentURL,
  ])
}

test('packages of ours are looked for from the other checkout', () => {
  expect(asked('@rdmakit/verbs')).toEqual(['@rdmakit/verbs', 'file:///other/package.json'])
})

test('everything else stays where it is', () => {
  for (const name of ['./endpoint.js', 'zeromq', 'node:fs', '@other/verbs'])
    expect(asked(name)).toEqual([name, 'file:///this/bench/dist/ring/ring.js'])
})
