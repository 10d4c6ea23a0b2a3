// I/O of Node that was given a view and stands, so that something can happen to the view's memory meanwhile.
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdtempSync, openSync, read, readSync, rmSync, write, writeSync } from 'node:fs'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { type BrotliOptions, brotliCompress, brotliDecompressSync, constants } from 'node:zlib'
import { onTestFinished } from 'vitest'

/** Lets it go on, to its end. @returns the bytes that it took from the view */
export type GoOn = () => Promise<Uint8Array>

/** Begins I/O with a view of about {@link LENGTH} bytes. */
export type SlowIo = (view: Uint8Array) => Promise<GoOn>

/** bytes: more than a pipe or a socket takes at once */
export const LENGTH = 2 ** 19

/** What I/O that reads writes into the view. */
export const WRITTEN = 7

function pathOf(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-slow-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  return join(folder, name)
}

/** A pipe, open at both ends. */
function pipe(): number {
  const path = pathOf('pipe')
  execFileSync('mkfifo', [path])
  const fd = openSync(path, 'r+')
  onTestFinished(() => closeSync(fd))
  return fd
}

async function listening(): Promise<[Server, string]> {
  const path = pathOf('socket')
  const server = createServer({ pauseOnConnect: true }).listen(path)
  onTestFinished(() => void server.close())
  await once(server, 'listening')
  return [server, path]
}

/** I/O that writes into the view. */
export const READS: [string, SlowIo][] = [
  [
    'fs.read',
    async (view) => {
      const fd = pipe()
      const done = promisify(read)(fd, view, 0, 4096, null)
      return async () => {
        writeSync(fd, Buffer.alloc(4096, WRITTEN))
        await done
        return new Uint8Array()
      }
    },
  ],
  [
    'a socket’s onread',
    async (view) => {
      const [server, path] = await listening()
      let read = 0
      const callback = (length: number) => {
        read += length
        return true
      }
      const client = createConnection({ path, onread: { buffer: view, callback } })
      const [peer] = (await once(server, 'connection')) as [Socket]
      return async () => {
        peer.end(Buffer.alloc(4096, WRITTEN))
        await once(client, 'end')
        if (read !== 4096) throw new Error(`it read ${read} bytes`)
        return new Uint8Array()
      }
    },
  ],
]

/** I/O that takes the view's bytes. */
export const WRITES: [string, SlowIo][] = [
  [
    'fs.write',
    async (view) => {
      const fd = pipe()
      const { length } = view
      const done = promisify(write)(fd, view, 0, length, null)
      return async () => {
        const out = Buffer.alloc(length)
        for (let at = 0; at < length; ) at += readSync(fd, out, at, length - at, null)
        await done
        return out
      }
    },
  ],
  [
    'socket.write',
    async (view) => {
      const [server, path] = await listening()
      const client = createConnection(path)
      const [peer] = (await once(server, 'connection')) as [Socket]
      client.end(view)
      return async () => Buffer.concat(await peer.toArray())
    },
  ],
  [
    'zlib.brotliCompress',
    async (view) => {
      // A while in libuv's pool.
      const params = { [constants.BROTLI_PARAM_QUALITY]: 9 }
      const done = promisify<Uint8Array, BrotliOptions, Buffer>(brotliCompress)(view, { params })
      return async () => brotliDecompressSync(await done)
    },
  ],
]
