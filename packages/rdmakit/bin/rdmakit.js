#!/usr/bin/env -S node --expose-gc --no-incremental-marking --max-semi-space-size=2
// Here, and not in dist/, so that npm finds it when it links the programs of a clone, which is before the first build.
import { existsSync } from 'node:fs'

if (!existsSync(new URL('../dist/cli.js', import.meta.url))) {
  process.stderr.write('rdmakit: this clone is not built yet; run npm run setup\n')
  process.exit(71)
}
await import('../dist/cli.js')
