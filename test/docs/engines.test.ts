// The versions of Node.js that the packages say they need: those that have require() of ES modules without a flag, which
// `require('@rdmakit/verbs')` takes. CI runs the suites of verbs and ring on the lowest of them.
import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'

const read = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')

interface Manifest {
  readonly workspaces: readonly string[]
  readonly engines?: { readonly node?: string }
}

const top = JSON.parse(read('package.json')) as Manifest

it.each(['.', ...top.workspaces])('%s needs a Node.js that can require() an ES module', (folder) => {
  const { engines } = JSON.parse(read(`${folder}/package.json`)) as Manifest
  // require(esm) came without a flag in 20.19.0 and in 22.12.0 (Node.js changelog); 21 never had it.
  expect(engines?.node).toBe('^20.19.0 || >=22.12.0')
})

it('CI runs tests on the lowest of these', () => {
  const [, lowest] = /^\^(\d+\.\d+)\.0 /.exec(top.engines?.node ?? '') ?? []
  expect(read('scripts/tiers/parts.mjs')).toContain(
    `'scripts/node/on-node.mjs', '--quick', '${lowest}', 'newest'`,
  )
})
