// The cost of a large message when those before it have been collected. Takes a second.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'

const run = promisify(execFile)
const MODULE = new URL('../../dist/index.js', import.meta.url).href
const [WARM_UP, COUNTED] = [400, 400]
const LENGTH = 262_144

// Both ends on one thread, so that malloc's main arena is what is looked at, as in a program.
const PROGRAM = `
  import { RingConnection, RingServer } from ${JSON.stringify(MODULE)}
  const uri = 'iwarp://127.0.0.1:0'
  let received = 0
  let before = 0
  const server = await RingServer.listen(uri, {
    onConnection(connection) {
      connection.messages.subscribe(({ data }) => {
        if (data.length !== ${LENGTH}) throw new Error('a message of another length')
        received++
        if (received === ${WARM_UP}) before = process.resourceUsage().minorPageFault
        if (received < ${WARM_UP + COUNTED}) return
        console.log(process.resourceUsage().minorPageFault - before)
        process.exit()
      })
    },
  })
  const connection = await RingConnection.connect(server.uri)
  const message = new Uint8Array(${LENGTH}).fill(7)
  for (;;) while (!connection.send(message)) await connection.writable()
`

it('takes memory that was used before: few of its pages are faulted in anew', async () => {
  const { stdout } = await run(process.execPath, ['--input-type=module', '-e', PROGRAM], { timeout: 60_000 })
  const pages = LENGTH / 4096
  // V8 of Node 24 and later frees them in larger lots: of 64 pages 4 to 19 are new, 0 to 7 before; all without this.
  const part = Number(process.versions.node.split('.')[0]) < 24 ? 4 : 2
  expect(Number(stdout) / COUNTED).toBeLessThan(pages / part)
})

// A message in parts: it is longer than a frame. What leads to one that was taken may have grown old.
const TAKEN = `
  import { RingConnection, RingServer } from ${JSON.stringify(MODULE)}
  const server = await RingServer.listen('iwarp://127.0.0.1:0', {
    onConnection: (connection) => void connection.messages.subscribe(() => {}),
  })
  const connection = await RingConnection.connect(server.uri)
  const message = new Uint8Array(2 ** 20)
  const transmit = async () => {
    for (let i = 0; i < 8; i++) await connection.transmit(message)
  }
  await transmit()
  gc()
  gc()
  await transmit()
  const before = process.memoryUsage().arrayBuffers
  gc({ type: 'minor' })
  gc({ type: 'minor' })
  console.log(before - process.memoryUsage().arrayBuffers)
  process.exit()
`

it('is collected with what is young: no full collection every 64 messages of 1 MiB', async () => {
  const words = ['--expose-gc', '--input-type=module', '-e', TAKEN]
  const { stdout } = await run(process.execPath, words, { timeout: 60_000 })
  expect(Number(stdout)).toBeGreaterThanOrEqual(6 * 2 ** 20)
})
