// Makes a library to link against in the place of a system's: it has the same symbols, each in the newest version that the
// system of then had. What is linked so runs there and on all that came after, as if it had been linked there.
// Usage: node older-library.mjs OUT.so LIBRARY 'GLIBC_2.28 …' COMPILER…
// LIBRARY: its soname. The versions: the newest of then, one for each prefix.
import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'

const [out, library, limits, program, ...flags] = process.argv.slice(2)
const run = (command, words) => execFileSync(command, words, { encoding: 'utf8', maxBuffer: 64 << 20 })

/** `GLIBC_2.2.5` is its prefix and three numbers. */
function parse(version) {
  const [, prefix, numbers] = /^([A-Z_]+)_([0-9.]+)$/.exec(version) ?? []
  return prefix === undefined ? undefined : { prefix, numbers: numbers.split('.').map(Number) }
}
function compare(left, right) {
  for (let i = 0; i < Math.max(left.length, right.length); i++) {
    const difference = (left[i] ?? 0) - (right[i] ?? 0)
    if (difference !== 0) return difference
  }
  return 0
}
const newestOf = Object.fromEntries(
  limits.split(' ').map((limit) => {
    const { prefix, numbers } = parse(limit)
    return [prefix, numbers]
  }),
)

/** name: { version, type } */
const symbols = new Map()
const path = run(program, [...flags, `-print-file-name=${library}`]).trim()
for (const line of run('readelf', ['--dyn-syms', '--wide', path]).split('\n')) {
  const [, , , type, binding, , section, versioned = ''] = line.trim().split(/\s+/)
  const [name, version = ''] = versioned.split(/@+/)
  const parsed = parse(version)
  if (section === 'UND' || !['GLOBAL', 'WEAK', 'UNIQUE'].includes(binding) || parsed === undefined) continue
  const limit = newestOf[parsed.prefix]
  if (limit === undefined || compare(parsed.numbers, limit) > 0) continue
  const before = symbols.get(name)
  if (before === undefined || compare(parsed.numbers, parse(before.version).numbers) > 0)
    symbols.set(name, { version, type })
}
for (const prefix of Object.keys(newestOf))
  if (![...symbols.values()].some(({ version }) => version.startsWith(prefix)))
    throw new Error(`${path} has no symbols of ${prefix} as old as that`)

const SECTIONS = {
  OBJECT: ['.data', 'object'],
  TLS: ['.section .tbss,"awT",%nobits', 'tls_object'],
}
const source = [...symbols].flatMap(([name, { version, type }], i) => {
  const [section, kind] = SECTIONS[type] ?? ['.text', 'function']
  return [
    section,
    `.globl s${i}`,
    `.type s${i}, %${kind}`,
    `s${i}: .skip 8`,
    `.size s${i}, 8`,
    `.symver s${i}, ${name}@@${version}`,
  ]
})
const versions = [...new Set([...symbols.values()].map(({ version }) => version))]
writeFileSync(`${out}.s`, `${source.join('\n')}\n`)
writeFileSync(`${out}.map`, versions.map((version) => `${version} { local: s[0-9]*; };\n`).join(''))
const link = ['-shared', '-nostdlib', `-Wl,-soname,${library}`, `-Wl,--version-script,${out}.map`]
run(program, [...flags, ...link, '-o', out, `${out}.s`])
