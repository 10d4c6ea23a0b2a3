#!/usr/bin/env -S node --expose-gc --no-incremental-marking
// Here, and not in dist/, so that npm finds it when it links the programs of a clone, which is before the first build.
import '../dist/cli.js'
