import { spawn } from 'node:child_process'

/** of qemu-io's output: by then hundreds of pages are written */
const BEGUN_BYTES = 100_000
/** WRITEs that it is told of at a time */
const WRITES = 256

/**
 * Writes ever new bytes to the `bytes` at `offset` of an export, many pages at a time, until its server is gone, and
 * repeats nothing. Resolves when writes are answered.
 */
export async function busyWriter(uri: string, offset: number, bytes: number): Promise<Disposable> {
  const client = spawn('qemu-io', ['-f', 'raw', uri], { stdio: ['pipe', 'pipe', 'ignore'] })
  client.stdin.on('error', () => {}) // it has ended
  let count = 0
  const command = () => {
    const each = count++
    return `aio_write -P ${each % 255} ${offset + ((each * 37) % (bytes / 4096)) * 4096} 4k\n`
  }
  // It never has all that it is to write, however long the test takes to end the server.
  const feed = () => {
    while (client.stdin.writable && client.stdin.write(Array.from({ length: WRITES }, command).join('')));
  }
  client.stdin.on('drain', feed)
  feed()
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
