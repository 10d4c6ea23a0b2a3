import { createHash, randomFillSync } from 'node:crypto'
import { createReadStream, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { must, startServe, startServer, temporaryFolder } from '../e2e/helpers/processes.js'

const MIB = 2 ** 20
const FILE_MIB = 256

/**
 * Remote memory without any kernel driver: a file goes into the swap-server's memory over iwarp:// and
 * comes back. Throws when a byte is wrong.
 */
export async function userSpaceDemo(): Promise<void> {
  const start = performance.now()
  const say = (line: string): void =>
    console.log(`[${((performance.now() - start) / 1000).toFixed(1).padStart(5)} s] ${line}`)
  using folder = temporaryFolder()
  const source = join(folder.path, 'source')
  const back = join(folder.path, 'back')
  writeFileSync(source, '')
  const piece = Buffer.alloc(MIB)
  for (let i = 0; i < FILE_MIB; i++) writeFileSync(source, randomFillSync(piece), { flag: 'a' })
  say(`made a file of ${FILE_MIB} MiB of random bytes`)

  const { program: server, uri } = await startServer(['--memory', `${FILE_MIB}M`])
  await using _server = server
  say(`swap-server listens at ${uri} and lends ${FILE_MIB} MiB`)
  const { program: client, uri: nbd } = await startServe(uri, `${FILE_MIB}M`, folder.path)
  await using _client = client
  say(`nbd-client serves that memory at ${nbd}`)

  const wrote = timed(() => must('nbdcopy', [source, nbd]))
  say(`nbdcopy wrote the file in ${wrote.toFixed(2)} s (${rate(wrote)})`)
  const read = timed(() => must('nbdcopy', [nbd, back]))
  say(`nbdcopy read it back in ${read.toFixed(2)} s (${rate(read)})`)
  const [sent, received] = [await digest(source), await digest(back)]
  if (sent !== received) throw new Error(`the file came back changed: sha256 ${sent} became ${received}`)
  await client.stop()
  await server.stop()
  console.log(
    `\nProved: ${FILE_MIB} MiB lived in another process's memory, reached by one-sided RDMA over iWARP; ` +
      'every byte came back right.',
  )
}

function timed(work: () => unknown): number {
  const start = performance.now()
  work()
  return (performance.now() - start) / 1000
}

function rate(seconds: number): string {
  return `${Math.round(FILE_MIB / seconds)} MiB/s`
}

async function digest(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const piece of createReadStream(path)) hash.update(piece)
  return hash.digest('hex')
}
