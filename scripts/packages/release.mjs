// npm run release -- --dry-run [--version X.Y.Z] [--no-gate]: all that a release consists of, in build/release: tarballs of
// every platform, SHA256SUMS, a bill of materials (sbom.cdx.json), release-notes.md. Publishes nothing, and changes nothing
// in the checkout: prints what is left to be done by hand.
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { buildAddons, PLATFORMS, pack } from './pack.mjs'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const place = join(top, 'build', 'release')
const HOST = `${process.platform}-${process.arch}`
const readJson = (path) => JSON.parse(readFileSync(path, 'utf8'))

const usage = `usage: npm run release -- --dry-run [OPTION…]

  --dry-run        required: publishing is done by hand, with the commands that this prints
  --version X.Y.Z  of all packages (default: that of package.json)
  --no-gate        do not try the tarballs (npm run test:packages, on this platform and emulated)`

function fail(message, status = 1) {
  console.error(`release: ${message}`)
  process.exit(status)
}

function run(program, words) {
  console.log(`release: ${[program, ...words].join(' ')}`)
  const { status } = spawnSync(program, words, { cwd: top, stdio: 'inherit' })
  if (status !== 0) fail(`${program} has ended with ${status}`)
}

/** What CHANGELOG.md says of what was not released yet. */
function releaseNotes() {
  const text = readFileSync(join(top, 'CHANGELOG.md'), 'utf8')
  const notes = /^## Unreleased\n(.*?)(?=^## |$(?![\s\S]))/ms.exec(text)?.[1]?.trim()
  if (!notes) fail('CHANGELOG.md has nothing under "## Unreleased"')
  return notes
}

/** Obstacles to a release of this checkout, in lines. */
function obstacles(version) {
  const git = (...words) => execFileSync('git', words, { cwd: top, encoding: 'utf8' }).trim()
  const found = []
  if (git('status', '--porcelain') !== '') found.push('the checkout has changes that are not committed')
  if (git('tag', '--list', `v${version}`) !== '') found.push(`there is a tag v${version}`)
  const root = readJson(join(top, 'package.json'))
  if (root.repository === undefined)
    found.push('package.json names no repository: npm links it, and its provenance is checked against it')
  for (const folder of root.workspaces) {
    const { name, version: own } = readJson(join(top, folder, 'package.json'))
    if (own !== root.version) found.push(`${name} is ${own}, and package.json ${root.version}`)
  }
  return found
}

/**
 * CycloneDX, of what an installation has, as npm tells it; and of what is linked into the addons. Where npm fetched it from
 * says nothing of it: checksums do.
 */
function billOfMaterials(tarballs, version) {
  const folder = join(place, 'installation')
  mkdirSync(folder)
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ name: 'rdmakit', version, private: true }))
  const host = tarballs.filter(({ name }) => !name.includes('/addons-') || name.endsWith(HOST))
  const words = ['install', '--no-audit', '--no-fund', '--loglevel=error', '--prefer-offline']
  execFileSync('npm', [...words, ...host.map(({ path }) => path)], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const bill = JSON.parse(
    execFileSync('npm', ['sbom', '--sbom-format', 'cyclonedx'], { cwd: folder, encoding: 'utf8' }),
  )
  rmSync(folder, { recursive: true })
  for (const component of [bill.metadata.component, ...bill.components]) {
    delete component.externalReferences
    delete component.properties
    component.purl = component.purl.replace(/\?.*$/, '')
  }
  bill.metadata.component.name = 'rdmakit'
  const napi = readJson(join(top, 'node_modules/node-addon-api/package.json'))
  bill.components.push(
    {
      type: 'library',
      name: 'node-addon-api',
      version: napi.version,
      licenses: [{ license: { id: 'MIT' } }],
    },
    { type: 'library', name: 'liburing', version: liburingVersion(), licenses: [{ license: { id: 'MIT' } }] },
  )
  return bill
}

const liburingVersion = () =>
  /^Version: ([0-9.]+)/m.exec(execFileSync('dpkg-query', ['-s', 'liburing-dev'], { encoding: 'utf8' }))[1]

const { values: options } = parseArgs({
  options: {
    'dry-run': { type: 'boolean' },
    version: { type: 'string', default: readJson(join(top, 'package.json')).version },
    gate: { type: 'boolean', default: true },
    help: { type: 'boolean' },
  },
  allowNegative: true,
})
if (options.help) {
  console.log(usage)
  process.exit()
}
if (!options['dry-run']) fail(`only --dry-run is done by this program\n${usage}`, 64)
const { version } = options
if (!/^\d+\.\d+\.\d+(-[0-9a-z.]+)?$/.test(version)) fail(`--version ${version}: not of the form X.Y.Z`, 64)

const notes = releaseNotes()
const found = obstacles(version)
const platforms = Object.keys(PLATFORMS)
run('npm', ['run', '--silent', 'build'])
buildAddons(platforms)
const tarballs = pack(platforms, place, version)
writeFileSync(join(place, 'release-notes.md'), `## ${version}\n\n${notes}\n`)
writeFileSync(
  join(place, 'sbom.cdx.json'),
  `${JSON.stringify(billOfMaterials(tarballs, version), undefined, 2)}\n`,
)
const files = [...tarballs.map(({ path }) => path), join(place, 'sbom.cdx.json')]
const sums = files.map(
  (path) => `${createHash('sha256').update(readFileSync(path)).digest('hex')}  ${basename(path)}\n`,
)
writeFileSync(join(place, 'SHA256SUMS'), sums.join(''))
if (options.gate) {
  run('node', ['scripts/packages/gate.mjs'])
  run('node', ['scripts/packages/gate.mjs', '--no-lint', '--emulate'])
}

console.log(`release: ${relative(top, place)} has`)
for (const { path, size } of tarballs) console.log(`  ${basename(path)}  ${Math.ceil(size / 1024)} KiB`)
console.log('  SHA256SUMS, sbom.cdx.json, release-notes.md')
for (const line of found) console.log(`release: in the way: ${line}`)
console.log('release: what is left, by hand, where npm knows who you are and CI can vouch for the build:')
console.log(
  `  set the version ${version} in each package.json, and the heading "## ${version}" in CHANGELOG.md; commit; git tag v${version}`,
)
for (const { path } of tarballs)
  console.log(`  npm publish --provenance --access public ${relative(top, path)}`)
