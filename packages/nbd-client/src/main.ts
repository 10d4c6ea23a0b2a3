#!/usr/bin/env -S node --expose-gc --no-incremental-marking
import { main } from './program.js'

await main(process.argv.slice(2))
