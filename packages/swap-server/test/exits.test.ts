// A program that has nothing left to do exits, whatever session or server it has left open, if it says so.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { describe, expect, it, onTestFinished } from 'vitest'
import { SwapServer } from '../src/index.js'
import { ADDRESSES, MIB } from './fixture.js'

const DEADLINE_MS = 50_000
const index = new URL('../dist/index.js', import.meta.url).href

/** What the programs have: a data connection takes what it takes from verbs. */
const PREAMBLE = `
import { SwapServer, SwapServerSession } from ${JSON.stringify(index)}
const [, uri, own] = process.argv
const connectData = async (session) => {
  const domain = session.context.allocateProtectionDomain()
  const sendQueue = session.context.createCompletionQueue({ entries: 16 })
  return await session.connectData(domain, { sendQueue })
}
/** Comes only while something else keeps the program alive. */
const later = (act) => void setTimeout(act, 200).unref()
`

async function run(
  program: string,
  address: () => string,
): Promise<{ code: number | null; printed: string }> {
  const server = new SwapServer({ memory: 8 * MIB, slabSize: MIB })
  onTestFinished(() => server.close())
  const uri = await server.listen(address())
  const script = ['--input-type=module', '-e', PREAMBLE + program, uri, address()]
  const child = spawn(process.execPath, script, {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: DEADLINE_MS,
    killSignal: 'SIGKILL',
  })
  const [printed, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')])
  return { code, printed }
}

describe.each(Object.entries(ADDRESSES))('over %s a program', (_, address) => {
  it("exits whose session and data connections are unref'ed, also one that was made later", async () => {
    const program = `
      const session = await SwapServerSession.open([uri])
      await session.allocate(1)
      await connectData(session)
      session.unref()
      await connectData(session)
      console.log(session.over)`
    expect(await run(program, address)).toEqual({ code: 0, printed: 'undefined\n' })
  })

  it("exits whose server is unref'ed, also where it listens later", async () => {
    const program = `
      const server = new SwapServer({ memory: 2 ** 23, slabSize: 2 ** 20 })
      await server.listen(own)
      server.unref()
      await server.listen(own.startsWith('shm') ? own + '.other' : own)
      console.log('listens')`
    expect(await run(program, address)).toEqual({ code: 0, printed: 'listens\n' })
  })

  it.each([
    ['its session', 'const one = await SwapServerSession.open([uri])'],
    ["its session, ref'ed again", 'const one = (await SwapServerSession.open([uri])).unref().ref()'],
    [
      'its server',
      'const one = new SwapServer({ memory: 2 ** 23, slabSize: 2 ** 20 }).unref().ref(); await one.listen(own)',
    ],
  ])('stays for %s', async (_, open) => {
    const program = `${open}
      later(async () => {
        await one.close()
        console.log('closed')
      })`
    expect(await run(program, address)).toEqual({ code: 0, printed: 'closed\n' })
  })

  it("closes and leaves an unref'ed session before it exits", async () => {
    const program = `
      const session = (await SwapServerSession.open([uri], { linger: 60_000 })).unref()
      const { identity } = session
      await session.leave()
      const resumed = (await SwapServerSession.resume([uri], identity, { linger: 60_000 })).unref()
      await resumed.close()
      const gone = await SwapServerSession.resume([uri], identity).catch(({ code }) => code)
      console.log(gone)`
    expect(await run(program, address)).toEqual({ code: 0, printed: 'ENOENT\n' })
  })
})
