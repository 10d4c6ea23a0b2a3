#!/usr/bin/env -S node --expose-gc --no-incremental-marking --max-semi-space-size=2
import { main } from './commands/program.js'

export * from './commands/program.js'

// rdmakit says itself what to run. Not awaited: what a command loads then waits for this module, where it has its code from.
if (!Reflect.has(globalThis, Symbol.for('rdmakit'))) void main(process.argv.slice(2))
