import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
} from 'node:fs'
import { createServer, Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { InvalidInputError } from '../src/command-line/invalid-input-error.js'
import { ControlSocket } from '../src/service/control-socket.js'
import { callControlSocket, runningPrograms } from '../src/service/running-programs.js'
import { openRuntimeDirectory, runtimeDirectory } from '../src/service/runtime-directory.js'

const MODULE = new URL('../dist/service/control-socket.js', import.meta.url).href

let top: string
let folder: string

beforeEach(() => {
  top = mkdtempSync(join(tmpdir(), 'rdmakit-run-'))
  folder = join(top, 'run')
  vi.stubEnv('RDMAKIT_RUN', folder)
})

afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(top, { recursive: true, force: true })
})

it('is mode 0600, in a folder of mode 0700, and leaves nothing else there', async () => {
  const socket = await ControlSocket.open('test', { 'GET /status': () => ({ well: true }) })
  expect(statSync(folder).mode & 0o777).toBe(0o700)
  expect(statSync(socket.path).mode & 0o777).toBe(0o600)
  expect(readdirSync(folder)).toEqual([`test-${process.pid}.sock`])
  expect(await runningPrograms('test')).toMatchObject([{ pid: process.pid, status: { well: true } }])
  socket.close()
  expect(readdirSync(folder)).toEqual([])
})

it('touches no folder but its own on the way, whose parent may be of another user or file system', async () => {
  const listen = vi.spyOn(Server.prototype, 'listen')
  const socket = await ControlSocket.open('test', { 'GET /status': () => ({}) })
  socket.close()
  const [at] = listen.mock.calls[0] as unknown as [string]
  expect(dirname(dirname(at))).toBe(folder)
  listen.mockRestore()
})

it('opens in a Worker, which may not change the mask of the process', async () => {
  const worker = new Worker(
    `const { parentPort } = require('node:worker_threads')
     import(${JSON.stringify(MODULE)})
       .then(({ ControlSocket }) => ControlSocket.open('test', { 'GET /status': () => ({ in: 'a worker' }) }))
       .then(({ path }) => { parentPort.postMessage(path); setInterval(() => {}, 2 ** 30) })`,
    { eval: true, env: { ...process.env, RDMAKIT_RUN: folder } },
  )
  const path = await new Promise<string>((resolve, reject) => {
    worker.once('message', resolve)
    worker.once('error', reject)
  })
  expect(statSync(path).mode & 0o777).toBe(0o600)
  expect(await callControlSocket(path, 'GET', '/status')).toEqual({ in: 'a worker' })
  await worker.terminate()
})

it('replaces what one that has ended has left', async () => {
  const left = await ControlSocket.open('test', {})
  const name = left.path
  symlinkSync(join(top, 'elsewhere'), `${name}.link`)
  left.close()
  symlinkSync(join(top, 'elsewhere'), name)
  const socket = await ControlSocket.open('test', {})
  expect(socket.path).toBe(name)
  expect(statSync(name).isSocket()).toBe(true)
  socket.close()
})

it('closes though its socket cannot be removed', async () => {
  const socket = await ControlSocket.open('test', {})
  rmSync(socket.path)
  // What unlink(2) refuses, root too.
  mkdirSync(socket.path)
  socket.close()
  expect(readdirSync(folder)).toEqual([`test-${process.pid}.sock`])
})

it('takes no folder in which, or in the place of which, others could put something', () => {
  mkdirSync(folder, { mode: 0o700 })
  for (const mode of [0o777, 0o720]) {
    chmodSync(folder, mode)
    expect(openRuntimeDirectory).toThrow(/for control sockets, can be written by others; "chmod 700 /)
  }
  chmodSync(folder, 0o700)
  for (const mode of [0o777, 0o702]) {
    chmodSync(top, mode)
    expect(openRuntimeDirectory).toThrow(InvalidInputError)
    expect(openRuntimeDirectory).toThrow(/is not safe: .* can be written by others; "chmod go-w /)
  }
  chmodSync(top, 0o1777)
  expect(openRuntimeDirectory()).toBe(folder)
  if (process.geteuid?.() !== 0) return
  chownSync(top, 4242, 4242)
  expect(openRuntimeDirectory).toThrow(/is not safe: .* belongs to user 4242/)
})

it.each([0, 1000])(
  'is in a folder of an absolute path when the environment names an empty one, for user %i',
  (user) => {
    const getuid = vi.spyOn(process, 'getuid').mockReturnValue(user)
    for (const name of ['RDMAKIT_RUN', 'XDG_RUNTIME_DIR']) vi.stubEnv(name, '')
    const directory = runtimeDirectory()
    getuid.mockRestore()
    expect(directory).toSatisfy(isAbsolute)
  },
)

it('takes no folder whose path is too long for a socket, and does not make it', () => {
  // `/swap-server-4194304.99.sock` fits just so.
  const most = 107 - 28
  const long = join(top, 'x'.repeat(most - top.length - 1))
  vi.stubEnv('RDMAKIT_RUN', `${long}x`)
  expect(openRuntimeDirectory).toThrow(InvalidInputError)
  expect(openRuntimeDirectory).toThrow(/is 1 bytes too long for the path of a socket; set RDMAKIT_RUN to a/)
  expect(readdirSync(top)).toEqual([])
  vi.stubEnv('RDMAKIT_RUN', long)
  expect(openRuntimeDirectory()).toBe(long)
})

it('an answer that comes a byte at a time, and never ends, is waited for as long as one that does not come', async () => {
  const path = join(top, 'slow.sock')
  const peers: Socket[] = []
  const server = createServer((peer) => {
    peers.push(peer)
    peer.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n')
    const drops = setInterval(() => peer.write(' '), 20)
    peer.on('error', () => {}).on('close', () => clearInterval(drops))
  })
  await new Promise<void>((resolve) => server.listen(path, resolve))
  await expect(callControlSocket(path, 'GET', '/status', undefined, 200)).rejects.toThrow(
    `${path} does not answer`,
  )
  for (const peer of peers) peer.destroy()
  await new Promise((resolve) => server.close(resolve))
})
