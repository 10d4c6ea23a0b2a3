import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { builtCheckout, commitOf } from '../against/checkout.js'

let root: string
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'rdmakit-bench-test-'))
})
afterEach(() => rmSync(root, { recursive: true }))

const put = (path: string, text = '') => {
  mkdirSync(dirname(join(root, path)), { recursive: true })
  writeFileSync(join(root, path), text)
}

function build(): void {
  put('package.json', '{"name":"rdmakit-workspace"}')
  put('packages/verbs/dist/index.js')
  put('packages/verbs/build/Release/verbs.node')
  put('packages/ring-transport/dist/index.js')
  put('packages/ring-transport/build/Release/ring_transport.node')
  put('packages/nbd-client/dist/cli.js')
  put('packages/nbd-client/build/Release/nbd_client.node')
  put('packages/swap-server/dist/cli.js')
  mkdirSync(join(root, 'node_modules/@rdmakit'), { recursive: true })
  for (const name of ['verbs', 'ring-transport', 'swap-server', 'nbd-client'])
    symlinkSync(`../../packages/${name}`, join(root, 'node_modules/@rdmakit', name))
}

test('a checkout that is built is taken', () => {
  build()
  expect(builtCheckout(root)).toBe(root)
})

test('another project is no checkout', () => {
  put('package.json', '{"name":"left-pad"}')
  expect(() => builtCheckout(root)).toThrow(`--against ${root}: not a checkout of rdmakit`)
  expect(() => builtCheckout(join(root, 'nowhere'))).toThrow('not a checkout of rdmakit')
})

test('what is not built is named, with the command that builds it', () => {
  build()
  rmSync(join(root, 'packages/verbs/build/Release/verbs.node'))
  expect(() => builtCheckout(root)).toThrow(
    `--against ${root}: not built, packages/verbs/build/Release/verbs.node missing; ` +
      `build it: cd ${root} && npm ci && npm run build`,
  )
})

test('a checkout with the packages of another one in its node_modules is refused', () => {
  build()
  rmSync(join(root, 'node_modules/@rdmakit/verbs'))
  mkdirSync(join(root, 'elsewhere'))
  symlinkSync('../../elsewhere', join(root, 'node_modules/@rdmakit/verbs'))
  expect(() => builtCheckout(root)).toThrow('its node_modules/@rdmakit/verbs is not its own packages/verbs')
})

test('a folder without git has no commit', () => {
  expect(commitOf(root)).toBe('unknown commit')
})
