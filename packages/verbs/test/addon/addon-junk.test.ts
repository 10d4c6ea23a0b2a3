// The addon itself, without the checks of TypeScript before it: whatever it is given is an error, never the end of the
// process, nor memory by the gigabyte.
import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Handle, native } from '../../src/native.js'

describe('the raw addon refuses', () => {
  let context: Handle
  let queue: Handle
  let pair: Handle
  beforeEach(() => {
    context = native.openDevice('iwarp', 'iwarp0')
    queue = native.createCq(context, 16, undefined, false, 0)
    const caps = {
      maxSend: 4,
      maxReceive: 4,
      maxSendSge: 1,
      maxReceiveSge: 1,
      maxInline: 0,
      signalAll: false,
    }
    pair = native.createQp(undefined, native.allocPd(context), queue, queue, undefined, { type: 2, ...caps })
  })
  afterEach(() => {
    native.close(pair)
    native.close(queue)
    native.close(context)
  })

  const JUNK = [undefined, null, 'x', {}, [], 10n, Number.NaN, -1, 0, 1.5, 2 ** 31, 2 ** 32 + 1, Infinity]

  it.each(JUNK)('%s as the size of a completion array, and of slots', (size) => {
    const count = size as number
    expect(() => native.createCompletionArray(queue, count)).toThrow(/from 1 to 256/)
    expect(() => native.createSendSlots(pair, [], count)).toThrow(/from 1 to 65536/)
    expect(() => native.createReceiveSlots(pair, [], count, false)).toThrow(/from 1 to 65536/)
  })

  it.each([undefined, null, 1, 'x', {}, () => {}])('%s as a completion queue', (junk) => {
    expect(() => native.createCompletionArray(junk as Handle, 16)).toThrow(/handle of a completion queue/)
  })

  it('another kind of handle as a completion queue, and one that is closed', () => {
    expect(() => native.createCompletionArray(pair, 16)).toThrow(/handle of a completion queue/)
    const closed = native.createCq(context, 16, undefined, false, 0)
    native.close(closed)
    expect(() => native.createCompletionArray(closed, 16)).toThrow(/closed/)
  })

  it('an external of somebody else, also where a closed handle is none', async () => {
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    const socket = connect((server.address() as AddressInfo).port, '127.0.0.1')
    await once(socket, 'connect')
    const { _externalStream: foreign } = (socket as unknown as { _handle: { _externalStream: Handle } })
      ._handle
    expect(() => native.createCompletionArray(foreign, 16)).toThrow(/handle of a completion queue/)
    expect(() => native.destroyed(foreign)).toThrow('expected a handle')
    expect(native.close(foreign)).toBeUndefined()
    expect(native.closeAsync(foreign)).toBeUndefined()
    socket.destroy()
    server.close()
  })

  it.each([undefined, null, 1, 'x', {}])('%s as the regions of slots', (junk) => {
    expect(() => native.createSendSlots(pair, junk as Handle[], 16)).toThrow(/array of memory regions/)
    expect(() => native.createReceiveSlots(pair, junk as Handle[], 16, false)).toThrow(
      /array of memory regions/,
    )
  })

  it('numbers that are none where it polls', () => {
    const { poll } = native.createCompletionArray(queue, 16)
    for (const junk of JUNK.filter((each) => each !== 0 && each !== 2 ** 31))
      expect(() => poll(junk as number)).toThrow(/whole number/)
    expect(poll(0)).toBe(0)
    expect(poll(2 ** 31)).toBe(0)
  })
})
