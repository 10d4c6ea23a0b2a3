// npm run pack [-- --platform linux-x64 …] [--no-build]: what npm publishes, as tarballs in build/pack: the packages, and one
// package of prebuilt addons for each platform. Prints each tarball's path, files and sizes.
//
// A package is packed from a copy, so that the checkout's package.json names neither what only a release knows (the
// packages of addons, which are no workspaces) nor what only a checkout needs.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { crossBuild, crossBuilt } from './cross.mjs'
import { reachedFrom } from './imports.mjs'

const top = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const HOST = `${process.platform}-${process.arch}`

/** What is packed beside the packages: their addons, and where a build for the platform leaves them. */
const ADDONS = {
  'verbs.node': 'verbs',
  'ring_transport.node': 'ring-transport',
  'nbd_client.node': 'nbd-client',
}
export const PLATFORMS = {
  'linux-x64': {
    cpu: 'x64',
    strip: 'strip',
    built: (name, file) => join(top, 'packages', name, 'build', 'Release', file),
  },
  'linux-arm64': { cpu: 'arm64', strip: 'aarch64-linux-gnu-strip', built: crossBuilt },
}

/** Builds what npm run build does not: for the platforms that are not this machine's. */
export function buildAddons(platforms) {
  if (platforms.includes('linux-arm64')) crossBuild(Object.values(ADDONS))
}

const readJson = (path) => JSON.parse(readFileSync(path, 'utf8'))
const root = readJson(join(top, 'package.json'))

/** Those of `packages`, what others rest on first. */
function workspaces() {
  return root.workspaces.map((folder) => ({ folder, manifest: readJson(join(top, folder, 'package.json')) }))
}

/** Fields that come from the root, or that a consumer has no use for. */
function published({ devDependencies, scripts, ...manifest }, folder, version) {
  const own = (dependencies = {}) =>
    Object.fromEntries(
      Object.entries(dependencies).map(([name, range]) => [
        name,
        name.startsWith('@rdmakit/') ? version : range,
      ]),
    )
  return {
    ...manifest,
    version,
    ...(manifest.dependencies && { dependencies: own(manifest.dependencies) }),
    os: ['linux'],
    engines: root.engines,
    ...(root.repository && home(root.repository, folder)),
    publishConfig: { access: 'public' },
  }
}

/** Where it comes from, and where faults are told. @param repository of the root's package.json */
function home(repository, folder) {
  const homepage = repository.url.replace(/^git\+|\.git$/g, '')
  return {
    repository: { ...repository, directory: folder },
    homepage: `${homepage}/tree/main/${folder}#readme`,
    bugs: { url: `${homepage}/issues` },
  }
}

/** Code that is there for what package.json leads to. Not: what tsc left of sources that are gone, or what a bundle holds. */
function isPacked(folder, reached) {
  return (path) => {
    const file = relative(folder, path)
    if (!/^(dist|generated)\//.test(file) || !/\.[cm]?[jt]s(\.map)?$/.test(file)) return true
    return reached.has(path.replace(/\.map$/, '')) && !/\.d\.c?ts\.map$/.test(file)
  }
}

function stage(folder, manifest, files, place) {
  mkdirSync(place, { recursive: true })
  const filter = isPacked(folder, reachedFrom(folder, manifest))
  for (const file of files) cpSync(join(folder, file), join(place, file), { recursive: true, filter })
  cpSync(join(top, 'LICENSE'), join(place, 'LICENSE'))
  writeFileSync(join(place, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`)
}

/** @returns what npm says of it, with the path of the tarball */
function tarball(place, out) {
  const text = execFileSync('npm', ['pack', '--json', '--loglevel=error', '--pack-destination', out], {
    cwd: place,
    encoding: 'utf8',
  })
  const told = JSON.parse(text)
  // npm 12 names them; before, it is a list.
  const [made] = Array.isArray(told) ? told : Object.values(told)
  return { ...made, path: join(out, made.filename.replace('@', '').replace('/', '-')) }
}

const addonsOf = (platform) => `@rdmakit/addons-${platform}`

/** The licences of what is linked into the addons. What they load at run time is the system's. */
function notices() {
  const licence = readFileSync(join(top, 'node_modules/node-addon-api/LICENSE.md'), 'utf8')
  const { version } = readJson(join(top, 'node_modules/node-addon-api/package.json'))
  const liburing = readFileSync(join(top, 'scripts/packages/notices/liburing.txt'), 'utf8')
  return `node-addon-api ${version}, in all addons\n\n${licence}\n${'-'.repeat(80)}\n\n${liburing}`
}

function stageAddons(platform, place, version) {
  const { cpu, strip, built } = PLATFORMS[platform]
  mkdirSync(place, { recursive: true })
  for (const [file, name] of Object.entries(ADDONS)) {
    const path = built(name, file)
    if (!existsSync(path)) throw new Error(`there is no ${relative(top, path)}; run npm run build`)
    execFileSync(strip, ['-o', join(place, file), path])
  }
  const [system, processor] = platform.split('-')
  const manifest = published(
    {
      name: addonsOf(platform),
      description: `The native addons of the @rdmakit packages for ${system} on ${processor}`,
      license: root.license,
      type: 'commonjs',
      cpu: [cpu],
      libc: ['glibc'],
      files: ['*.node', 'third-party-notices.txt'],
    },
    'packages',
    version,
  )
  writeFileSync(join(place, 'third-party-notices.txt'), notices())
  writeFileSync(
    join(place, 'README.md'),
    `# ${manifest.name}\n\n${manifest.description}. npm installs it with \`@rdmakit/verbs\`; nothing in it is for use by name.\n`,
  )
  stage(place, manifest, [], place)
}

/**
 * @param platforms whose addons are packed, and named as optional dependencies
 * @param version of all of them
 * @returns {{ name: string, path: string, size: number, unpackedSize: number, files: { path: string, size: number }[] }[]}
 */
export function pack(platforms, out = join(top, 'build', 'pack'), version = root.version) {
  rmSync(out, { recursive: true, force: true })
  mkdirSync(out, { recursive: true })
  const stages = join(out, 'stages')
  const made = []
  for (const platform of platforms) {
    const place = join(stages, `addons-${platform}`)
    stageAddons(platform, place, version)
    made.push(tarball(place, out))
  }
  for (const { folder, manifest } of workspaces()) {
    if (manifest.private) continue
    const from = join(top, folder)
    const place = join(stages, manifest.name.replace('@rdmakit/', ''))
    const given = published(manifest, folder, version)
    if (manifest.name === '@rdmakit/verbs')
      given.optionalDependencies = Object.fromEntries(platforms.map((name) => [addonsOf(name), version]))
    const files = readdirSync(from).filter(
      (file) => !['build', 'node_modules', 'src', 'test', 'package.json'].includes(file),
    )
    stage(from, given, files, place)
    made.push(tarball(place, out))
  }
  rmSync(stages, { recursive: true })
  return made
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values: options } = parseArgs({
    options: {
      platform: { type: 'string', multiple: true, default: [HOST] },
      'no-build': { type: 'boolean' },
    },
  })
  for (const name of options.platform)
    if (!(name in PLATFORMS)) {
      console.error(`pack: no platform is called "${name}"; known: ${Object.keys(PLATFORMS).join(', ')}`)
      process.exit(2)
    }
  if (!options['no-build']) {
    const { status } = spawnSync('npm', ['run', '--silent', 'build'], { cwd: top, stdio: 'inherit' })
    if (status !== 0) process.exit(status ?? 1)
    buildAddons(options.platform)
  }
  const kib = (bytes) => `${Math.ceil(bytes / 1024)} KiB`
  for (const { path, size, unpackedSize, files } of pack(options.platform))
    console.log(`${relative(top, path)}  ${kib(size)}, ${kib(unpackedSize)} unpacked, ${files.length} files`)
}
