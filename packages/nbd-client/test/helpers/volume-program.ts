// volume-process.mjs and all that it imports as one file, as the programs are (scripts/bundle.mjs): tests start it by the
// dozen, and a start takes less than half then. Made once for a file of tests.
import { mkdirSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { rolldown } from 'rolldown'
import { afterAll } from 'vitest'

const source = fileURLToPath(new URL('volume-process.mjs', import.meta.url))
/** Within the package: addons are loaded by name. */
const folder = fileURLToPath(new URL(`../../build/test/${process.pid}`, import.meta.url))
const rxjs = fileURLToPath(new URL('../../../../node_modules/rxjs/dist/esm/internal', import.meta.url))

async function bundle(): Promise<string> {
  mkdirSync(folder, { recursive: true })
  const build = await rolldown({
    input: source,
    platform: 'node',
    resolve: { alias: { 'rxjs/internal': rxjs } },
    logLevel: 'warn',
  })
  const file = `${folder}/volume-process.mjs`
  await build.write({ format: 'esm', file, codeSplitting: false })
  await build.close()
  return file
}

afterAll(() => rmSync(folder, { recursive: true, force: true }))

export const VOLUME_PROGRAM = await bundle()
