// A volume keeps the program alive until it is closed, whether its servers are there or not, unless it is unref'ed.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { describe, expect, it } from 'vitest'
import { ADDRESSES, serve } from './helpers/swap-servers.js'

const DEADLINE_MS = 50_000

const PREAMBLE = `
import { createRequire } from 'node:module'
import { openVolume, VolumeEngine } from ${JSON.stringify(new URL('../dist/index.js', import.meta.url).href)}
const [, uri] = process.argv
const addon = ${JSON.stringify(new URL('../build/Release/remote_volume.node', import.meta.url).pathname)}
const native = createRequire(addon)(addon)
const make = (settings) => new VolumeEngine(native, settings, {})
const open = (options) => openVolume({ servers: [[uri]], size: 4 * 2 ** 20, lanes: 1, ...options }, make)
/** Comes only while something else keeps the program alive. */
const later = (act) => void setTimeout(act, 200).unref()
const close = (volume) =>
  later(async () => {
    await volume.close(100)
    console.log('closed')
  })
`

type Served = Awaited<ReturnType<typeof serve>>

/** Runs a program on a server of this process, which ends when the program says "end it", and another begins there at "again". */
async function run(
  program: string,
  { server, uri }: Served,
): Promise<{ code: number | null; printed: string[] }> {
  const child = spawn(process.execPath, ['--input-type=module', '-e', PREAMBLE + program, uri], {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: DEADLINE_MS,
    killSignal: 'SIGKILL',
  })
  const ended = once(child, 'exit')
  const printed: string[] = []
  for await (const line of createInterface(child.stdout)) {
    if (line === 'end it') await server.close()
    else if (line === 'again') await serve(8, uri)
    else printed.push(line)
  }
  const [code] = await ended
  return { code, printed }
}

describe.each(Object.entries(ADDRESSES))('over %s a program', (_, address) => {
  it("exits whose volume is unref'ed", async () => {
    const program = `
      const volume = (await open()).unref()
      console.log(volume.slabs.mapped)`
    expect(await run(program, await serve(8, address()))).toEqual({ code: 0, printed: ['4'] })
  })

  it.each([
    ['a volume', '(await open())'],
    ["a volume that is ref'ed again", '(await open()).unref().ref()'],
  ])('stays for %s', async (_, volume) => {
    expect(await run(`close(${volume})`, await serve(8, address()))).toEqual({ code: 0, printed: ['closed'] })
  })

  it('stays for a volume whose only server is away', async () => {
    const program = `
      const volume = await open({ reconnect: 600_000 })
      volume.onServerFailure(() => close(volume))
      console.log('end it')`
    expect(await run(program, await serve(8, address()))).toEqual({ code: 0, printed: ['closed'] })
  })

  it("exits whose volume is unref'ed when its only server has gone", async () => {
    const program = `
      const volume = (await open({ reconnect: 600_000 })).unref()
      const alive = setInterval(() => {}, 1000)
      volume.onServerFailure(() => clearInterval(alive))
      console.log('end it')`
    expect(await run(program, await serve(8, address()))).toEqual({ code: 0, printed: [] })
  })

  it("exits whose volume is unref'ed when a server has joined again", async () => {
    const program = `
      const volume = (await open()).unref()
      const lives = () => volume.servers.some(({ failure }) => failure === undefined)
      volume.onServerFailure(() => {
        console.log('again')
        const alive = setInterval(() => lives() && clearInterval(alive), 10)
      })
      const alive = setInterval(() => lives() || clearInterval(alive), 10)
      console.log('end it')`
    expect(await run(program, await serve(8, address()))).toEqual({ code: 0, printed: [] })
  })

  it("closes an unref'ed volume before it exits, and its server has its memory back", async () => {
    const served = await serve(8, address())
    const program = `
      const volume = (await open()).unref()
      await volume.quiesce()
      await volume.close()
      console.log('closed')`
    expect(await run(program, served)).toEqual({ code: 0, printed: ['closed'] })
    expect(served.server.store.free).toBe(8)
  })
})
