// Whatever is in the tenants file at a reload: one line says what is wrong and all stays as it was, or the tenants are
// well-formed. Nothing of a secret is ever in that line.
import fc from 'fast-check'
import { expect, it } from 'vitest'
import { effort } from '../../../../test/effort.js'
import { ConfigurationError, Tenants } from '../../src/index.js'
import { OperatorFile } from './tenants-fixture.js'

const SECRETS = ['00112233445566778899aabbccddeeff', 'c2VjcmV0LW9mLXRoZS1vdGhlci10ZW5hbnQ=']
const GOOD = {
  tenants: [
    {
      name: 'prod',
      keys: [
        { id: 'k1', secret: SECRETS[0] },
        { id: 'k2', secret: SECRETS[1] },
      ],
      quota: '8G',
      class: 'production',
      weight: 50,
      operator: true,
    },
    { name: 'spot', keys: [{ id: 'k1', secret: SECRETS[1] }], class: 'opportunistic', bytesPerSecond: '1G' },
  ],
}
const TEXT = JSON.stringify(GOOD)

function reloaded(file: OperatorFile, tenants: Tenants, content: string | Uint8Array): void {
  const before = tenants.all
  file.write(content)
  try {
    tenants.reload()
  } catch (failure) {
    expect(failure).toBeInstanceOf(ConfigurationError)
    const { message } = failure as Error
    expect(message).toMatch(/^tenants file [\x20-\x7e]{10,400}$/)
    for (const secret of SECRETS)
      for (let at = 0; at + 12 <= secret.length; at++)
        expect(message).not.toContain(secret.slice(at, at + 12))
    expect(tenants.all).toEqual(before)
    return
  }
  const { all } = tenants
  expect(all.length).toBeGreaterThan(0)
  expect(new Set(all.map(({ keys }) => keys.size > 0)).size).toBe(1)
  for (const tenant of all) {
    expect(tenants.find(tenant.name)).toBe(tenant)
    expect(tenant.name).toMatch(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/)
    expect(['production', 'opportunistic']).toContain(tenant.class)
    expect(tenant.weight >= 1 && tenant.weight <= 10_000 && Number.isInteger(tenant.weight)).toBe(true)
    expect(typeof tenant.operator).toBe('boolean')
    const { bytesPerSecond, operationsPerSecond } = tenant.limits
    for (const limit of [bytesPerSecond, operationsPerSecond, tenant.quota ?? 1])
      expect(Number.isSafeInteger(limit) && limit >= 0).toBe(true)
    for (const [id, key] of tenant.keys) {
      expect(key.id).toBe(id)
      expect(key.secret.length).toBeGreaterThanOrEqual(16)
    }
  }
}

/** On the tenants of one server: what one input has left there is what the next one meets. */
function property<Input>(inputs: fc.Arbitrary<Input>, textOf: (input: Input) => string | Uint8Array): void {
  using file = new OperatorFile(GOOD)
  const tenants = Tenants.load(file.path)
  fc.assert(
    fc.property(inputs, (input) => reloaded(file, tenants, textOf(input))),
    { numRuns: effort(150), verbose: 1 },
  )
  file.write(GOOD)
  expect(tenants.reload().kept.length + tenants.reload().added.length).toBeGreaterThan(0)
  expect(tenants.findKey('prod', 'k2')?.secret.toString('base64')).toBe(SECRETS[1])
}

it('bytes that are changed, cut and swapped anywhere', () => {
  const change = fc.record({
    at: fc.nat({ max: TEXT.length }),
    gone: fc.nat({ max: 40 }),
    come: fc.oneof(
      fc.string({ maxLength: 8 }),
      fc.constantFrom('"', '":', ',', '{', '}', '\u001b[31m', '1e9'),
    ),
  })
  property(fc.array(change, { minLength: 1, maxLength: 4 }), (changes) => {
    let text = TEXT
    for (const { at, gone, come } of changes) text = text.slice(0, at) + come + text.slice(at + gone)
    return text
  })
})

it('any value in the place of any other', () => {
  const paths = pathsOf(GOOD)
  const value = fc.oneof(
    fc.jsonValue(),
    fc.constantFrom(
      ...SECRETS,
      '9'.repeat(5000),
      '\u001b]0;title\u0007',
      -1,
      2 ** 53,
      'K',
      '0',
      'constructor',
    ),
  )
  property(fc.tuple(fc.constantFrom(...paths), value), ([path, given]) => {
    const changed = structuredClone(GOOD)
    let at = changed as unknown as Record<string, never>
    for (const key of path.slice(0, -1)) at = at[key] as never
    Object.assign(at, { [path.at(-1) as string]: given })
    return JSON.stringify(changed)
  })
})

it('any field in the place of any other, a secret among them', () => {
  const paths = pathsOf(GOOD).filter((path) => Number.isNaN(Number(path.at(-1))))
  const name = fc.oneof(
    fc.string(),
    fc.constantFrom(...SECRETS, '__proto__', 'constructor', 'wieght', 'name', 'secret', '\n'),
  )
  property(fc.tuple(fc.constantFrom(...paths), name), ([path, given]) => {
    const changed = structuredClone(GOOD)
    let at = changed as unknown as Record<string, never>
    for (const key of path.slice(0, -1)) at = at[key] as never
    const last = path.at(-1) as string
    const moved = at[last]
    delete at[last]
    Object.defineProperty(at, given, { value: moved, enumerable: true })
    return JSON.stringify(changed)
  })
})

it('bytes that are no text', () => {
  property(fc.uint8Array({ maxLength: 200 }), (bytes) => bytes)
})

/** Each way to a value within `value`. */
function pathsOf(value: unknown, before: string[] = []): string[][] {
  const within =
    typeof value === 'object' && value !== null
      ? Object.entries(value).flatMap(([key, each]) => pathsOf(each, [...before, key]))
      : []
  return before.length === 0 ? within : [before, ...within]
}
