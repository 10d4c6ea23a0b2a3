// Each program as few files: dist/cli.js and the commands that it loads when they are asked for, in dist/cli/.
// Node opens, resolves and compiles nearly 500 modules otherwise, which is two thirds of what a start takes, and of
// the pause of a device whose client comes back. The libraries stay modules; addons are loaded by name.
import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join, sep } from 'node:path'
import { rolldown } from 'rolldown'

const notices = 'third-party-licenses.txt'

/** @param top the repository's folder; `packages` have a dist/main.js */
export async function bundle(top, packages) {
  for (const name of packages) {
    const dist = join(top, 'packages', name, 'dist')
    const build = await rolldown({
      input: { cli: join(dist, 'main.js') },
      platform: 'node',
      // The commands' dependencies on it stay in the program: one file less to open.
      preserveEntrySignatures: 'allow-extension',
      // As ES modules, of which only what is used comes along; Node's own condition gives CommonJS.
      resolve: { alias: { 'rxjs/internal': join(top, 'node_modules/rxjs/dist/esm/internal') } },
      logLevel: 'warn',
    })
    const { output } = await build.generate({
      format: 'esm',
      chunkFileNames: 'cli/[name]-[hash].js',
      // A third of the bytes, and a sixteenth of a start. Lines stay, for stack traces.
      comments: false,
    })
    await build.close()
    const files = new Map(output.map(({ fileName, code }) => [fileName, code]))
    files.set(join('cli', notices), licenses(output.flatMap(({ moduleIds }) => moduleIds)))
    await mkdir(join(dist, 'cli'), { recursive: true })
    for (const old of readdirSync(join(dist, 'cli')))
      if (!files.has(join('cli', old))) rmSync(join(dist, 'cli', old))
    // A program that runs may load a command yet: what has not changed is left alone.
    for (const [file, text] of files) {
      const path = join(dist, file)
      const before = await readFile(path, 'utf8').catch(() => undefined)
      if (before !== text) await writeFile(path, text, { mode: file === 'cli.js' ? 0o755 : 0o644 })
    }
  }
}

/** Writes dist/build.json, which says what a package was built from. */
export async function stamp(top, packages) {
  const build = { commit: commitOf(top) }
  for (const name of packages)
    await writeFile(join(top, 'packages', name, 'dist', 'build.json'), `${JSON.stringify(build)}\n`)
}

/** With a `+` where files differ from it; undefined outside of a clone. */
function commitOf(top) {
  const git = (...words) => execFileSync('git', words, { cwd: top, encoding: 'utf8', stdio: 'pipe' }).trim()
  try {
    const differs = git('status', '--porcelain', '--untracked-files=no') !== ''
    return git('rev-parse', '--short=12', 'HEAD') + (differs ? '+' : '')
  } catch {
    return undefined
  }
}

/** The licences of the packages that these modules are from, as they want to be named wherever their code is. */
function licenses(modules) {
  const homes = new Set()
  for (const module of modules) {
    const parts = module.split(sep)
    const at = parts.lastIndexOf('node_modules')
    if (at === -1) continue
    homes.add(parts.slice(0, at + (parts[at + 1].startsWith('@') ? 3 : 2)).join(sep))
  }
  return [...homes]
    .sort()
    .map((home) => {
      const { name, version, license } = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'))
      const files = readdirSync(home).filter((file) => /^(licen[cs]e|notice|copying)/i.test(file))
      const texts = files.map((file) => readFileSync(join(home, file), 'utf8').trim())
      return [`${name} ${version}, ${license}`, ...texts].join('\n\n')
    })
    .join(`\n\n${'-'.repeat(80)}\n\n`)
}
