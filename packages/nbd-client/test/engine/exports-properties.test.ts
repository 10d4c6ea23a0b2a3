// Whatever stands behind --export: one sentence says what is wrong, or it is a part of the volume that an engine takes.
import { EXIT, exitStatusOf } from '@rdmakit/operator-kit'
import { UsageError } from '@rdmakit/verbs'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { checkExports, parseExport } from '../../src/commands/export-flags.js'
import { BlockEngine } from '../../src/engine/block-engine.js'
import type { ExportOptions } from '../../src/engine/export-options.js'
import { MIB } from '../helpers/fixture.js'

const SIZE = 4 * MIB

/** @returns undefined when it was refused, in a sentence */
function parsed(text: string): ExportOptions | undefined {
  try {
    return parseExport(text)
  } catch (failure) {
    expect(exitStatusOf(failure)).toBe(EXIT.usage)
    expect((failure as Error).message).toMatch(/--export "/)
    return undefined
  }
}

/** The rest must be refused by the engine, with a reason. */
function isTaken(exports: readonly ExportOptions[]): boolean {
  try {
    const engine = new BlockEngine({ size: SIZE, exports: checkExports(exports, SIZE) })
    void engine.close()
    return true
  } catch (failure) {
    expect((failure as { code?: unknown }).code ?? failure).toSatisfy(
      (reason: unknown) => reason === 'EINVAL' || reason instanceof UsageError,
    )
    return false
  }
}

function checkPart({ name, offset, size, readOnly, description, ...others }: ExportOptions): void {
  expect(others).toEqual({})
  expect(name).toBeTypeOf('string')
  for (const each of [offset ?? 0, size ?? 4096]) {
    expect(Number.isSafeInteger(Number(each))).toBe(true)
    expect(Number(each) % 4096).toBe(0)
    expect(Number(each)).toBeGreaterThanOrEqual(0)
  }
  expect(readOnly ?? true).toBe(true)
  expect(description ?? '').toBeTypeOf('string')
}

const word = fc.oneof(
  fc.string({ maxLength: 12 }),
  fc.constantFrom('read-only', 'size', 'size=', 'size=0', 'size=1M', 'size=4K', 'size=4097', 'size=-4096'),
  fc.constantFrom('offset=0', 'offset=1M', 'offset=8M', 'offset=1e3', 'offset=9007199254740992', 'size=1T'),
  fc.constantFrom('description=', 'description=a,size=1,b', '__proto__=1', 'name=x', 'read-only=1'),
)

describe('an export', () => {
  it('of any words is refused, or a part whose numbers fit', () => {
    fc.assert(
      fc.property(fc.array(word, { maxLength: 6 }), (words) => {
        const part = parsed(words.join(','))
        if (part !== undefined) checkPart(part)
      }),
      { numRuns: effort(1000), verbose: 1 },
    )
  })

  it('that was written from its fields is read as them', () => {
    const fields = fc.record(
      {
        name: fc.string().filter((name) => !name.includes(',')),
        offset: fc.nat({ max: 2 ** 20 }).map((pages) => pages * 4096),
        size: fc.integer({ min: 1, max: 2 ** 20 }).map((pages) => pages * 4096),
        readOnly: fc.constant(true as const),
        description: fc.string(),
      },
      { requiredKeys: ['name'] },
    )
    fc.assert(
      fc.property(fields, (given) => {
        const words = [
          given.name,
          ...(given.offset === undefined ? [] : [`offset=${given.offset}`]),
          ...(given.size === undefined ? [] : [`size=${given.size}`]),
          ...(given.readOnly === undefined ? [] : ['read-only']),
          ...(given.description === undefined ? [] : [`description=${given.description}`]),
        ]
        expect(parseExport(words.join(','))).toEqual(given)
      }),
      { numRuns: effort(500), verbose: 1 },
    )
  })

  it('among others is within the volume, or refused with a reason', () => {
    fc.assert(
      fc.property(fc.array(fc.array(word, { maxLength: 4 }), { minLength: 1, maxLength: 3 }), (specs) => {
        const exports = specs.flatMap((words) => parsed(words.join(',')) ?? [])
        if (exports.length === 0 || !isTaken(exports)) return
        for (const { offset = 0, size = 0 } of exports)
          expect(Number(offset) < SIZE && Number(offset) + Number(size) <= SIZE).toBe(true)
      }),
      { numRuns: effort(150), verbose: 1 },
    )
  })
})
