import { spawn } from 'node:child_process'

const WRITES = 200_000
/** of qemu-io's output: by then hundreds of pages are written, and thousands are to come */
const BEGUN_BYTES = 100_000

/**
 * Writes ever new bytes to the `bytes` at `offset` of an export, many pages at a time, until its server is gone, and
 * repeats nothing. Resolves when writes are answered.
 */
export async function busyWriter(uri: string, offset: number, bytes: number): Promise<Disposable> {
  const client = spawn('qemu-io', ['-f', 'raw', uri], { stdio: ['pipe', 'pipe', 'ignore'] })
  client.stdin.on('error', () => {}) // it has ended
  const command = (each: number) =>
    `aio_write -P ${each % 255} ${offset + ((each * 37) % (bytes / 4096)) * 4096} 4k\n`
  client.stdin.write(Array.from({ length: WRITES }, (_, each) => command(each)).join(''))
  let heard = 0
  await new Promise<void>((resolve, reject) => {
    client.once('exit', () => reject(new Error('qemu-io ended')))
    client.stdout.on('data', (text: Buffer) => {
      heard += text.length
      if (heard > BEGUN_BYTES) resolve()
    })
  })
  return { [Symbol.dispose]: () => void client.kill('SIGKILL') }
}
