import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { createContext, runInContext } from 'node:vm'
import { UsageError } from '@rdmakit/verbs'
import { deferred } from '@rdmakit/verbs/internal'
import { describe, expect, it } from 'vitest'
import { RemoteError } from '../../src/index.js'
import { pairOfTest } from '../helpers/pair.js'
import { HANG_MS } from '../helpers/processes.js'

const realm = createContext({})
/** An object of another realm (vm, jest): an instance of no class here. */
const there = (code: string) => runInContext(code, realm)
const timeout = HANG_MS
const pair = () => pairOfTest('iwarp://127.0.0.1:0', { capacity: 2 ** 16 }, { capacity: 2 ** 16 })

describe('bytes of another realm', () => {
  it.each([3, 2 ** 17])('are transmitted: %i', async (length) => {
    const { a, b } = await pair()
    const { promise, resolve } = deferred<Uint8Array>()
    b.messages.subscribe((message) => resolve(message.copy()))
    await a.transmit(there(`new Uint8Array(${length}).fill(5)`), { timeout })
    expect(await promise).toEqual(new Uint8Array(length).fill(5))
  })

  it('are sent, asked with and answered with', async () => {
    const { a, b } = await pair()
    const got: number[] = []
    b.messages.subscribe((message) => got.push(message.length))
    b.handle((request) => there(`new Uint8Array(${request.length + 1}).fill(9)`))
    expect(a.send(there('new Uint8Array(3)'))).toBe(true)
    expect(a.sendBatch([there('new Uint8Array(4)')])).toBe(1)
    expect(await a.request(there('new Uint8Array(5)'), { timeout })).toEqual(new Uint8Array(6).fill(9))
    expect(got).toEqual([3, 4])
  })

  it('that are none are refused', async () => {
    const { a } = await pair()
    for (const code of ['"text"', '[1]', 'new Uint16Array(1)', 'new DataView(new ArrayBuffer(1))'])
      expect(() => a.send(there(code))).toThrow('a message is a Uint8Array')
  })
})

// Whether a message goes through the ring or is read is the size of the peer's ring: it must not decide.
it.each([3, 2 ** 17])(
  'shared and resizable memory is not transmitted, whatever its length: %i',
  async (length) => {
    const { a } = await pair()
    for (const code of [
      `new Uint8Array(new SharedArrayBuffer(${length}))`,
      `new Uint8Array(new ArrayBuffer(${length}, { maxByteLength: ${2 * length} }))`,
    ])
      await expect(a.transmit(there(code), { timeout })).rejects.toThrow(UsageError)
  },
)

it('errors of another realm reach the peer with their code and message', async () => {
  const { a, b } = await pair()
  b.handle(() => {
    throw there('Object.assign(new Error("the disk is full"), { code: "ENOSPC" })')
  })
  const failure = await a.request(new Uint8Array(1), { timeout }).catch((reason: unknown) => reason)
  expect(failure).toBeInstanceOf(RemoteError)
  expect(failure).toMatchObject({ code: 'ENOSPC', message: 'the disk is full' })
  b.handle(() => Promise.reject(there('new Error("no code")')))
  await expect(a.request(new Uint8Array(1), { timeout })).rejects.toMatchObject({
    code: 'EREMOTEIO',
    message: 'no code',
  })
})

it('all of it works when it is loaded in another realm, as jest does', async () => {
  const script = fileURLToPath(new URL('../helpers/programs/realm.mjs', import.meta.url))
  const child = spawn(process.execPath, ['--experimental-vm-modules', '--no-warnings', script], {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout,
  })
  const [printed] = await Promise.all([text(child.stdout), once(child, 'exit')])
  expect(JSON.parse(printed)).toEqual({
    realm: 'another',
    echoed: [1, 2, 3],
    transmitted: 2 ** 17,
    registered: [4096, 4096],
    taken: ['VerbsError', 'EADDRINUSE', true],
    failure: ['VerbsError', 'ECONNREFUSED', true],
    remote: ['RemoteError', 'ENOSPC', true],
  })
})
