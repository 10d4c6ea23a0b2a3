// The versions of Node.js that the packages say they need: those that have require() of ES modules without a flag, which
// `require('@rdmakit/verbs')` takes. CI runs the suites of verbs and ring on the lowest of them.
import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { top as checkout } from '../lab/base/paths.js'

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

/** Set-up with programs that only say what they are asked, so that it installs and builds nothing. */
function setUpWith(version: string) {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-setup-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  for (const file of ['package.json', 'scripts/setup.sh', 'scripts/ccache.sh'])
    cpSync(join(checkout, file), join(folder, file))
  const script = (name: string, line: string) =>
    writeFileSync(join(folder, name), `#!/bin/sh\n${line}\n`, { mode: 0o755 })
  script('node', `echo ${version}`)
  script('dpkg-query', 'echo installed')
  script('npm', 'echo "npm $1"; mkdir -p node_modules')
  const { status, stdout, stderr } = spawnSync('bash', [join(folder, 'scripts/setup.sh')], {
    env: { ...process.env, PATH: `${folder}:${process.env.PATH}` },
    encoding: 'utf8',
  })
  return { status, stdout: stdout.split('\n').filter((line) => line.startsWith('npm')), stderr }
}

it.each(['v18.19.0', 'v20.18.3', 'v21.7.3', 'v22.11.0'])('set-up refuses %s before all else', (version) => {
  const { status, stdout, stderr } = setUpWith(version)
  expect(stderr).toMatch(/^setup: this needs Node\.js .*\n$/)
  expect(stderr).toContain(`${top.engines?.node}; node is ${version} (`)
  expect({ status, stdout }).toEqual({ status: 1, stdout: [] })
})

it.each(['v20.19.0', 'v22.12.0', 'v24.1.0'])('set-up takes %s', (version) => {
  expect(setUpWith(version)).toEqual({ status: 0, stdout: ['npm ci', 'npm run'], stderr: '' })
})
