// What a start loads, which is most of what it takes: of libraries no more than is used (docs/architecture.md, "The programs
// start from few files"). Half a second.
import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { top } from '../../lab/base/paths.js'
import { NBD_CLIENT, run, SWAP_SERVER } from '../helpers/processes.js'

/** A file of a program, and all that it loads before it does anything. */
function loaded(file: string, known = new Map<string, string>()): Map<string, string> {
  if (known.has(file)) return known
  const text = readFileSync(file, 'utf8')
  known.set(file, text)
  for (const [, path] of text.matchAll(/^import\b.*?["'](\.[^"']+)["'];?$/gm))
    loaded(join(dirname(file), path as string), known)
  return known
}

describe.each([NBD_CLIENT, SWAP_SERVER])('%s', (script) => {
  it('loads little before it knows what is asked of it', () => {
    const texts = [...loaded(script).values()]
    expect(texts.join('')).toContain('class Command ')
    expect(texts.join('').length).toBeLessThan(200 * 1024)
  })
})

describe.each([
  [NBD_CLIENT, 'serve'],
  [NBD_CLIENT, 'attach'],
  [SWAP_SERVER, 'serve'],
])('%s %s', (script, command) => {
  it('loads no library of metrics before somebody asks for them', () => {
    const folder = join(dirname(script), 'cli')
    const own = readdirSync(folder).find((file) => file.startsWith(`${command}-`))
    const texts = [...loaded(join(folder, own as string)).values()]
    expect(texts.length).toBeGreaterThan(3)
    expect(texts.join('')).not.toContain('# HELP ')
    // That these words are prom-client's.
    const all = readdirSync(folder).map((file) => readFileSync(join(folder, file), 'utf8'))
    expect(all.filter((text) => text.includes('# HELP '))).toHaveLength(1)
  })
})

// What starts again to be kept out of swap has two lives, and the first needs nothing of a volume.
describe('nbd-client attach', () => {
  it('starts again before it loads what it is', () => {
    const texts = [...loaded(NBD_CLIENT).values()].join('')
    const parts = [...texts.matchAll(/\bimport\("[^"]*\/(start-swap-free|attach)-/g)].map(([, name]) => name)
    expect(parts).toEqual(['start-swap-free', 'attach'])
    const folder = join(dirname(NBD_CLIENT), 'cli')
    const file = readdirSync(folder).find((name) => name.startsWith('start-swap-free-'))
    expect([...loaded(join(folder, file as string)).values()].join('').length).toBeLessThan(20 * 1024)
  })
})

describe.each(['verbs', 'ring-transport'])('who imports %s', (name) => {
  it('loads of rxjs what it uses', () => {
    const index = join(top, 'packages', name, 'dist/index.js')
    const words = `
      await import(${JSON.stringify(index)})
      const { createRequire } = await import('node:module')
      console.log(Object.keys(createRequire(${JSON.stringify(index)}).cache).join('\\n'))`
    const { stdout, stderr } = run(process.execPath, ['--input-type=module', '-e', words])
    expect(stderr).toBe('')
    const ofRxjs = stdout.split('\n').filter((file) => file.includes('/rxjs/'))
    expect(ofRxjs.some((file) => file.endsWith('/internal/Observable.js'))).toBe(true)
    expect(ofRxjs.filter((file) => file.endsWith('/cjs/index.js'))).toEqual([])
  })
})
