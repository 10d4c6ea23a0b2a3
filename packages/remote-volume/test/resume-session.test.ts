// What a server says when its session is to be taken up again, and what of that gives its memory up: pages that only it
// has are lost by a mistake here.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type SessionIdentity, SwapServerSession, Tenants } from '@rdmakit/swap-server'
import { describe, expect, it, onTestFinished } from 'vitest'
import { Wire } from '../../../test/wire.js'
import { impostor } from '../../swap-server/test/admission/impostor.js'
import { endSession, resumeSession } from '../src/servers/resume-session.js'
import { MIB, serve, socketAddress } from './helpers/swap-servers.js'

const RIGHT = { id: 'k', secret: Buffer.alloc(32, 1) }
const VOLUME = { slabSize: MIB, slabCount: 4 }
const WRONG = { id: 'k', secret: Buffer.alloc(32, 2) }

/** A server that wants a key, and a session that lingers there. */
async function lingering() {
  const { server, uri } = await serve(4, undefined, tenants())
  const session = await SwapServerSession.open([uri], { tenant: 'swap', key: RIGHT, linger: 60_000 })
  await session.allocate(2)
  await session.leave()
  return { server, uri, identity: session.identity }
}

function tenants() {
  const folder = mkdtempSync(join(tmpdir(), 'nbd-resume-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const file = join(folder, 'tenants')
  const keys = [{ id: RIGHT.id, secret: RIGHT.secret.toString('hex') }]
  writeFileSync(file, JSON.stringify({ tenants: [{ name: 'swap', keys }] }), { mode: 0o600 })
  return { tenants: Tenants.load(file) }
}

const resume = (uris: readonly string[], identity: SessionIdentity, key = RIGHT) =>
  resumeSession({ uris, identity }, VOLUME, { tenant: 'swap', key, linger: 60_000 })

describe('a session', () => {
  it('is taken up with what it has there', async () => {
    const { uri, identity } = await lingering()
    const taken = await resume([uri], identity)
    expect(taken).toMatchObject({ slabs: [{ id: 1 }, { id: 2 }] })
    if ('session' in taken) await taken.session.close()
  })

  it('is not over because the key is not the right one yet', async () => {
    const { uri, identity } = await lingering()
    const outcome = await resume([uri], identity, WRONG)
    expect(outcome).toMatchObject({ ended: false, refused: false, forbidden: { code: 'EACCES' } })
    // Nor because of another address, where nobody is.
    expect(await resume([uri, socketAddress()], identity, WRONG)).toMatchObject({
      reason: 'the tenant, its key or the proof is wrong',
      forbidden: { code: 'EACCES' },
    })
    const taken = await resume([uri], identity)
    expect(taken).toMatchObject({ slabs: [{ id: 1 }, { id: 2 }] })
    if ('session' in taken) await taken.session.close()
  })

  it('is over when its server does not know it', async () => {
    const { uri, identity } = await lingering()
    const other = { ...identity, session: identity.session + 1 }
    expect(await resume([uri], other)).toMatchObject({ ended: true })
  })

  it('is not over because another server of the same key, to which an address leads by now, has none', async () => {
    const { uri, identity } = await lingering()
    const other = await serve(4, undefined, tenants())
    expect(await resume([other.uri], identity)).toMatchObject({ ended: true })
    const taken = await resume([other.uri, uri], identity)
    expect(taken).toMatchObject({ slabs: [{ id: 1 }, { id: 2 }] })
    if ('session' in taken) await taken.session.close()
  })

  it.each([
    ['nobody', async () => ({ uri: socketAddress() })],
    ['a server of the same key', () => serve(4, undefined, tenants())],
    ['a server without keys', () => serve(4)],
  ])('is ended, or has ended, with %s at another of its addresses', async (_, place) => {
    const { uri: elsewhere } = await place()
    for (const turned of [false, true]) {
      const { server, uri, identity } = await lingering()
      const uris = turned ? [elsewhere, uri] : [uri, elsewhere]
      const end = () => endSession(uris, identity, { tenant: 'swap', key: RIGHT })
      await end()
      expect(server.lingeringSessions).toBe(0)
      await expect(end()).rejects.toMatchObject({ code: 'ENOENT' })
    }
  })

  it('is not over where its server refuses it, though another one knows none', async () => {
    const { uri, identity } = await lingering()
    const other = await serve(4, undefined, tenants())
    const client = await SwapServerSession.resume([uri], identity, {
      tenant: 'swap',
      key: RIGHT,
      linger: 60_000,
    })
    const attended = () =>
      resumeSession({ uris: [other.uri, uri], identity }, VOLUME, {
        tenant: 'swap',
        key: RIGHT,
        linger: 60_000,
        unattended: true,
      })
    expect(await attended()).toMatchObject({ ended: false, refused: false })
    await client.close()
    expect(await attended()).toMatchObject({ ended: true })
  })

  it('may be behind whoever refuses at an address of another host', async () => {
    const { identity } = await lingering()
    const wire = await Wire.to('iwarp://127.0.0.1:1')
    const uri = wire.uri
    wire.close()
    expect(await resume([uri], identity)).toMatchObject({ ended: false, refused: false })
    expect(await resume([socketAddress(), uri], identity)).toMatchObject({ ended: false, refused: false })
  })

  it('may be anywhere while nobody listens, and is where the next address says', async () => {
    const { uri, identity } = await lingering()
    const nobody = socketAddress()
    expect(await resume([nobody], identity)).toMatchObject({ ended: false, refused: true })
    const taken = await resume([nobody, uri], identity)
    expect(taken).toMatchObject({ slabs: [{ id: 1 }, { id: 2 }] })
    if ('session' in taken) await taken.session.close()
  })
})

describe('a server that gives a session back', () => {
  const identity = { epoch: '0123456789abcdef', session: 5, token: Buffer.alloc(16, 1) }
  const PAGE = 256

  /** It answers Resume with `said` and lists without end. @returns how many pages it was asked for */
  async function endless(said: object, onPage: (pages: number) => void = () => {}) {
    let pages = 0
    const slab = (id: number) => ({ id, address: 2 ** 40 + id * MIB, rkey: 1, length: MIB })
    const server = await impostor(socketAddress(), ({ hello, list }) => {
      if (hello)
        return {
          hello: { ...identity, version: 1, resumed: true, slabSize: MIB, totalSlabs: 2 ** 40, ...said },
        }
      onPage(++pages)
      if (pages > 64) return { failure: { code: 'EIO', message: 'this is enough' } }
      const after = Number(list?.after)
      return { list: { slabs: Array.from({ length: PAGE }, (_, at) => slab(after + at + 1)) } }
    })
    onTestFinished(() => server.close())
    return { uri: server.uri, pages: () => pages }
  }

  it('lists no more slabs than a volume can have there, however many it says it has', async () => {
    const server = await endless({})
    const outcome = await resumeSession({ uris: [server.uri], identity }, VOLUME, {})
    expect(outcome).toMatchObject({ ended: false, forbidden: { code: 'EPROTO' } })
    expect(server.pages()).toBeLessThan(8)
  })

  it('is not waited for when the caller gives up', async () => {
    const giveUp = new AbortController()
    const server = await endless({}, (pages) => {
      if (pages === 2) giveUp.abort(new Error('enough'))
    })
    const large = { slabSize: MIB, slabCount: 2 ** 20 }
    const outcome = await resumeSession({ uris: [server.uri], identity }, large, { signal: giveUp.signal })
    expect(outcome).toMatchObject({ ended: false, reason: 'enough' })
    expect(server.pages()).toBe(2)
  })

  it('has slabs of the size that it had, or forbids it alone', async () => {
    const server = await endless({ slabSize: 2 * MIB })
    const outcome = await resumeSession({ uris: [server.uri], identity }, VOLUME, {})
    expect(outcome).toMatchObject({ ended: false, forbidden: { code: 'EPROTO' } })
    expect(server.pages()).toBe(0)
  })
})
