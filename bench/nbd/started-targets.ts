// The servers that a suite measures, each with random data in all its pages.
import { randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Build } from '../against/build.js'
import { run } from '../core/child.js'
import { type Name, open, type Target } from './targets.js'

/** Started when they are first measured, and kept until the end. */
export class StartedTargets {
  readonly #folder: string
  readonly #open = new Map<string, Target>()

  constructor(folder: string) {
    this.#folder = folder
  }

  async get(name: Name, build: Build): Promise<Target> {
    const key = `${name} of ${build.label} build`
    const found = this.#open.get(key)
    if (found !== undefined) return found
    const target = await open(name, build, mkdtempSync(join(this.#folder, 'target-')))
    try {
      // Each page is written once: a page never written is answered without network, which would flatter us.
      await run('nbdcopy', [this.#random(), target.uri], { timeout: 60_000 })
    } catch (failure) {
      await target[Symbol.asyncDispose]()
      throw failure
    }
    this.#open.set(key, target)
    return target
  }

  #random(): string {
    const path = join(this.#folder, 'random')
    if (!existsSync(path))
      for (let i = 0; i < 256; i++) writeFileSync(path, randomBytes(2 ** 20), { flag: 'a' })
    return path
  }

  async check(): Promise<string[]> {
    const wrong: string[] = []
    for (const [key, target] of this.#open) {
      const spared = await target.pagesSpared()
      if (spared > 0) wrong.push(`${key}: ${spared} pages were not moved, so its figures are too good`)
    }
    return wrong
  }

  async close(): Promise<void> {
    for (const target of this.#open.values()) await target[Symbol.asyncDispose]()
  }
}
