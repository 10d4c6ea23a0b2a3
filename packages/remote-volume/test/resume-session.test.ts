// What a server says when its session is to be taken up again, and what of that gives its memory up: pages that only it
// has are lost by a mistake here.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type SessionIdentity, SwapServerSession, Tenants } from '@rdmakit/swap-server'
import { describe, expect, it, onTestFinished } from 'vitest'
import { Wire } from '../../../test/wire.js'
import { resumeSession } from '../src/servers/resume-session.js'
import { MIB, serve, socketAddress } from './helpers/swap-servers.js'

const RIGHT = { id: 'k', secret: Buffer.alloc(32, 1) }
const WRONG = { id: 'k', secret: Buffer.alloc(32, 2) }

/** A server that wants a key, and a session that lingers there. */
async function lingering() {
  const folder = mkdtempSync(join(tmpdir(), 'nbd-resume-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const file = join(folder, 'tenants')
  const keys = [{ id: RIGHT.id, secret: RIGHT.secret.toString('hex') }]
  writeFileSync(file, JSON.stringify({ tenants: [{ name: 'swap', keys }] }), { mode: 0o600 })
  const { server, uri } = await serve(4, undefined, { tenants: Tenants.load(file) })
  const session = await SwapServerSession.open([uri], { tenant: 'swap', key: RIGHT, linger: 60_000 })
  await session.allocate(2)
  await session.leave()
  return { server, uri, identity: session.identity }
}

const resume = (uris: readonly string[], identity: SessionIdentity, key = RIGHT) =>
  resumeSession({ uris, identity }, MIB, { tenant: 'swap', key, linger: 60_000 })

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

  it('may be behind whoever refuses at an address of another host', async () => {
    const { identity } = await lingering()
    const wire = await Wire.to(1)
    const uri = `iwarp://127.0.0.1:${wire.port}`
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
