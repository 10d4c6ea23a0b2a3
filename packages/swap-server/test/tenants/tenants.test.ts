import { chmodSync, chownSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { ConfigurationError, readKeyFile, Tenants } from '../../src/index.js'
import { OperatorFile } from './tenants-fixture.js'

const SECRET = '00112233445566778899aabbccddeeff'
const keys = [{ id: 'k1', secret: SECRET }]
const one = (fields: object) => ({ tenants: [{ name: 'a', ...fields }] })

function load(content: unknown, mode?: number): Tenants {
  using file = new OperatorFile(content, mode)
  return Tenants.load(file.path)
}

/** The mistake in a tenants file, without the file's name. */
function mistake(content: unknown, mode?: number): string {
  try {
    load(content, mode)
  } catch (failure) {
    expect(failure).toBeInstanceOf(ConfigurationError)
    const { message } = failure as Error
    expect(message).not.toContain(SECRET)
    expect(message).toMatch(/^tenants file \/\S+/)
    return message.replace(/^tenants file \/[^\s:]+:? /, '').replaceAll(/"chmod 600 [^"]+"/g, '"chmod 600"')
  }
  return 'nothing'
}

describe('a tenants file', () => {
  it('says who may have how much', () => {
    const tenants = load({
      tenants: [
        {
          name: 'batch',
          keys,
          quota: '8G',
          class: 'opportunistic',
          weight: 50,
          operator: true,
          bytesPerSecond: '1G',
          operationsPerSecond: 100_000,
        },
      ],
    })
    expect(tenants.find('batch')).toMatchObject({
      quota: 8 * 2 ** 30,
      class: 'opportunistic',
      weight: 50,
      operator: true,
      limits: { bytesPerSecond: 2 ** 30, operationsPerSecond: 100_000 },
    })
    expect(tenants.findKey('batch', 'k1')?.secret.toString('hex')).toBe(SECRET)
    expect(tenants.needKeys).toBe(true)
  })

  it('leaves out what is as usual', () => {
    const tenants = load({ tenants: [{ name: 'default' }] }, 0o644)
    expect(tenants.find('')).toMatchObject({
      name: 'default',
      quota: undefined,
      class: 'production',
      weight: 100,
      operator: false,
      limits: { bytesPerSecond: 0, operationsPerSecond: 0 },
    })
    expect(tenants.needKeys).toBe(false)
  })

  it('is not needed: everybody is the tenant default', () => {
    expect(Tenants.open().find('')?.name).toBe('default')
    expect(Tenants.open().find('prod')).toBeUndefined()
    expect(Tenants.open().needKeys).toBe(false)
  })

  it('tells at a reload who came and went', () => {
    using file = new OperatorFile({ tenants: [{ name: 'a' }, { name: 'b' }] })
    const tenants = Tenants.load(file.path)
    file.write({ tenants: [{ name: 'b' }, { name: 'c' }] })
    expect(tenants.reload()).toEqual({ added: ['c'], removed: ['a'], kept: ['b'] })
    file.write('{}')
    expect(() => tenants.reload()).toThrow(ConfigurationError)
    expect(tenants.all.map(({ name }) => name)).toEqual(['b', 'c'])
  })
})

describe('a mistake in a tenants file is said in a sentence', () => {
  const oneKey = (key: unknown) => one({ keys: [key] })
  it.each<[unknown, string]>([
    ['', 'it is not JSON; the mistake is in line 1, column 1'],
    [
      `{"tenants":[\n{"name":"a","keys":[{"id":"1","secret":"${SECRET}" oops}]}]}`,
      'it is not JSON; the mistake is in line 2, column 75',
    ],
    ['[]', 'the file is not an object'],
    [{}, '"tenants" is not a list of 1 to 4096 tenants'],
    [{ tenants: [] }, '"tenants" is not a list of 1 to 4096 tenants'],
    [{ tenants: {} }, '"tenants" is not a list of 1 to 4096 tenants'],
    [{ tenant: [] }, 'the file has a field "tenant" that is not one of tenants'],
    [{ tenants: ['a'] }, 'tenants[0] is not an object'],
    [{ tenants: [{}] }, 'tenants[0].name is missing or not a string'],
    [
      { tenants: [{ name: 'a b' }] },
      'tenants[0].name is not 1 to 64 letters, digits, ".", "_", "-" that begin with a letter or digit',
    ],
    [{ tenants: [{ name: 'a' }, { name: 'a' }] }, 'tenant "a" appears twice'],
    [
      one({ qouta: '8G' }),
      'tenants[0] has a field "qouta" that is not one of name, keys, quota, class, weight, operator, sessions, dataConnections, bytesPerSecond, operationsPerSecond',
    ],
    [one({ class: 'best' }), 'tenant "a": class is neither "production" nor "opportunistic"'],
    [one({ operator: 'yes' }), 'tenant "a": operator is neither true nor false'],
    [one({ weight: 0 }), 'tenant "a": weight is not a whole number from 1 to 10000'],
    [one({ weight: 1.5 }), 'tenant "a": weight is not a whole number from 1 to 10000'],
    [
      one({ operationsPerSecond: '1000' }),
      'tenant "a": operationsPerSecond is not a whole number from 1 to 4294967296',
    ],
    [one({ quota: true }), 'tenant "a": quota is not a size such as "8G"'],
    [one({ bytesPerSecond: [] }), 'tenant "a": bytesPerSecond is not a size such as "8G"'],
    [one({ keys: {} }), 'tenant "a": keys is not a list of at most 16 keys'],
    [one({ keys: Array(17).fill(keys[0]) }), 'tenant "a": keys is not a list of at most 16 keys'],
    [oneKey('k'), 'tenant "a": keys[0] is not an object'],
    [oneKey({ secret: SECRET }), 'tenant "a": keys[0].id is missing or not a string'],
    [oneKey({ id: '1' }), 'tenant "a": keys[0].secret is missing or not a string'],
    [oneKey({ id: '1', key: SECRET }), 'tenant "a": keys[0] has a field "key" that is not one of id, secret'],
    [
      oneKey({ id: 'a:b', secret: SECRET }),
      'tenant "a": keys[0].id is not 1 to 64 letters, digits, ".", "_", "-" that begin with a letter or digit',
    ],
    [oneKey({ id: '1', secret: '§' }), 'tenant "a": keys[0]: the secret is neither hex nor base64'],
    [
      oneKey({ id: '1', secret: 'abcd' }),
      'tenant "a": keys[0]: the secret has 3 bytes instead of 16 to 1024; "openssl rand -hex 32" makes one',
    ],
    [one({ keys: [...keys, ...keys] }), 'tenant "a": keys: id "k1" appears twice'],
    [
      { tenants: [{ name: 'a', keys }, { name: 'b' }] },
      'tenant "b" has no keys and "a" has; give all of them keys, or none',
    ],
  ])('%j', (content, sentence) => {
    expect(mistake(content)).toBe(sentence)
  })

  it.each([
    ['quota', '8X'],
    ['quota', '0'],
    ['bytesPerSecond', '-1'],
  ])('%s of %s', (field, text) => {
    expect(mistake(one({ [field]: text }))).toMatch(new RegExp(`^tenant "a": ${field} `))
  })

  it('others may read its keys, or write to it', () => {
    expect(mistake(one({ keys }), 0o640)).toBe(
      'it has keys and is not safe: others have access (mode 640); "chmod 600"',
    )
    expect(mistake(one({}), 0o662)).toBe('can be written by others; "chmod 600"')
  })

  it('it is not there, no file, or too long', () => {
    expect(() => Tenants.load('/nonexistent/tenants')).toThrow(/cannot be read: there is no such file$/)
    expect(() => Tenants.load('/')).toThrow(/is not a file$/)
    expect(mistake(' '.repeat(2 ** 24 + 1))).toBe('is above 16777216 bytes')
  })
})

describe('a reload', () => {
  it('that takes all keys away changes nothing: it would open the server to all', () => {
    using file = new OperatorFile(one({ keys }))
    const tenants = Tenants.load(file.path)
    for (const content of [one({}), { tenants: [{ name: 'default' }, { name: 'b' }] }, one({ keys: [] })]) {
      file.write(content)
      expect(() => tenants.reload()).toThrow(ConfigurationError)
      expect(() => tenants.reload()).toThrow(/no longer has keys.* open to all; give its tenants keys/)
      expect(tenants.needKeys).toBe(true)
      expect(tenants.findKey('a', 'k1')?.secret.toString('hex')).toBe(SECRET)
      expect(tenants.all.map(({ name }) => name)).toEqual(['a'])
    }
    file.write({ tenants: [{ name: 'b', keys }] })
    expect(tenants.reload()).toEqual({ added: ['b'], removed: ['a'], kept: [] })
  })

  it('may bring the first keys', () => {
    using file = new OperatorFile(one({}))
    const tenants = Tenants.load(file.path)
    file.write(one({ keys }))
    tenants.reload()
    expect(tenants.needKeys).toBe(true)
  })
})

describe('what others can put in the place of a file', () => {
  it.each([
    ['a tenants file with keys', (path: string) => Tenants.load(path), one({ keys })],
    ['a tenants file without', (path: string) => Tenants.load(path), one({})],
    ['a key file', (path: string) => readKeyFile(path), `k1:${SECRET}`],
  ])('%s in a folder that others can write to is refused', (_, read, content) => {
    using file = new OperatorFile(content)
    for (const mode of [0o777, 0o720, 0o702]) {
      chmodSync(file.folder, mode)
      expect(() => read(file.path)).toThrow(/can be replaced by others: .*; "chmod go-w \/\S+"$/)
    }
    // Like /tmp: there each user can replace only their own files.
    for (const mode of [0o1777, 0o755]) {
      chmodSync(file.folder, mode)
      expect(() => read(file.path)).not.toThrow()
    }
  })

  it.runIf(process.geteuid?.() === 0)('a file of another user is refused, whatever is in it', () => {
    using file = new OperatorFile(one({}))
    chownSync(file.path, 4242, 4242)
    expect(() => Tenants.load(file.path)).toThrow(/belongs to user 4242; "chown 0 \/\S+"$/)
    chownSync(file.path, 0, 0)
    chownSync(file.folder, 4242, 4242)
    expect(() => Tenants.load(file.path)).toThrow(/can be replaced by others: \/\S+ belongs to user 4242$/)
  })
})

describe('a key file', () => {
  it.each([
    ['hex', `k1:${SECRET}\n`, SECRET],
    ['base64', `\nk1:${Buffer.from(SECRET, 'hex').toString('base64')}\n\n`, SECRET],
  ])('has one line of id and secret, in %s', (_, text, secret) => {
    using file = new OperatorFile(text)
    expect(readKeyFile(file.path)).toEqual({ id: 'k1', secret: Buffer.from(secret, 'hex') })
  })

  it.each([
    ['', 0o600, /is not one line "id:secret"$/],
    [SECRET, 0o600, /is not one line "id:secret"$/],
    [`k1:${SECRET}\nk2:${SECRET}\n`, 0o600, /is not one line "id:secret"$/],
    [`:${SECRET}`, 0o600, /is not one line "id:secret"$/],
    [`a b:${SECRET}`, 0o600, /: the key id is not 1 to 64 letters/],
    ['k1:0011', 0o600, /: the secret has 3 bytes instead of 16 to 1024/],
    ['k1:%%', 0o600, /: the secret is neither hex nor base64$/],
    [`k1:${SECRET}`, 0o644, /is not safe: others have access \(mode 644\)/],
    [`k1:${SECRET}`, 0o622, /can be written by others/],
  ])('%j of mode %o is refused', (text, mode, sentence) => {
    using file = new OperatorFile(text, mode)
    expect(() => readKeyFile(file.path)).toThrow(sentence)
    expect(() => readKeyFile(file.path)).not.toThrow(SECRET)
  })
})
