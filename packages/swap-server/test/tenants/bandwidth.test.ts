import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, type TestContext } from 'vitest'
import { eventually } from '../../../../test/eventually.js'
import { type SessionLimits, SwapServer, SwapServerSession, Tenants } from '../../src/index.js'

const MIB = 2 ** 20

type Finished = TestContext['onTestFinished']

// The server divides once a second. The cases wait for that side by side.
async function serve(finished: Finished, bandwidth: number, ...tenants: object[]) {
  const folder = mkdtempSync(join(tmpdir(), 'bandwidth-'))
  const file = join(folder, 'tenants.json')
  writeFileSync(file, JSON.stringify({ tenants }))
  const server = new SwapServer({ memory: MIB, slabSize: MIB, bandwidth, tenants: Tenants.load(file) })
  rmSync(folder, { recursive: true })
  finished(() => server.close())
  const uri = await server.listen('iwarp://127.0.0.1:0')
  return { server, connect: (tenant: string) => Meter.open(finished, uri, tenant) }
}

/** A client that moves a given amount. */
class Meter {
  limits: SessionLimits = { bytes: -1, operations: -1 }
  /** bytes per second */
  rate = 0
  #bytes = 0
  #at = performance.now()

  static async open(finished: Finished, uri: string, tenant: string): Promise<Meter> {
    const session = await SwapServerSession.open([uri], { tenant, heartbeatInterval: 120 })
    finished(() => session.close())
    const meter = new Meter()
    session.meter(
      () => {
        const now = performance.now()
        meter.#bytes += Math.round((meter.rate * (now - meter.#at)) / 1000)
        meter.#at = now
        return { bytes: meter.#bytes, operations: 0 }
      },
      (limits) => {
        meter.limits = limits
      },
    )
    return meter
  }
}

describe.concurrent('what a tenant’s sessions may use', () => {
  it('is told with hello, and divided among them', async ({ onTestFinished: finished }) => {
    const { server, connect } = await serve(finished, 0, {
      name: 'a',
      bytesPerSecond: '8M',
      operationsPerSecond: 400,
    })
    const first = await connect('a')
    expect(first.limits).toEqual({ bytes: 8 * MIB, operations: 400 })
    const second = await connect('a')
    expect(second.limits).toEqual({ bytes: 4 * MIB, operations: 200 })
    await eventually(() => first.limits.bytes === 4 * MIB && first.limits.operations === 200)
    first.rate = 6 * MIB
    await eventually(() => first.limits.bytes === 6 * MIB && second.limits.bytes === 2 * MIB)
    expect(server.query('operator').tenants?.[0]?.limits).toEqual({
      bytesPerSecond: 8 * MIB,
      operationsPerSecond: 400,
    })
  })

  it('is unlimited without a limit', async ({ onTestFinished: finished }) => {
    const { connect } = await serve(finished, 0, { name: 'a' })
    expect((await connect('a')).limits).toEqual({ bytes: 0, operations: 0 })
  })
})

describe.concurrent('an opportunistic tenant', () => {
  it('gets what production leaves, and gives way when production comes back', async ({
    onTestFinished: finished,
  }) => {
    const { connect } = await serve(finished, 100 * MIB, { name: 'p' }, { name: 'o', class: 'opportunistic' })
    const [production, other] = [await connect('p'), await connect('o')]
    await eventually(() => other.limits.bytes > 10 * MIB)
    const before = other.limits.bytes
    production.rate = 97 * MIB
    await eventually(() => other.limits.bytes <= before / 2)
    await eventually(() => other.limits.bytes < 4 * MIB)
    // Alone it may use the whole link.
    await eventually(() => production.limits.bytes === 0 || production.limits.bytes >= 100 * MIB)
    expect(other.limits.bytes).toBeGreaterThanOrEqual(MIB)
  })
})
