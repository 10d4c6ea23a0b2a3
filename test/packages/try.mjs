// Tries the packages as a stranger's machine has them: node try.mjs [emulated]. It runs on that machine, in the folder of
// the program that uses them: installs the tarballs, without a network, then runs every case and prints one line for each.
// Leaves what came of each in cases.json, and ends with status 1 when one has failed. Ten seconds.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { on } from 'node:events'
import { existsSync, readdirSync, readFileSync, statSync, watch, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { throughVolume } from './nbd.mjs'

/** Ends what hangs. No slow machine takes as long, but for one that is emulated. */
const PATIENCE_MS = process.argv[2] === 'emulated' ? 900_000 : 60_000
const NPM = '/npm/bin/npm-cli.js'
const MODULES = 'node_modules'

/** A program that runs while a case does, with what it has printed so far. */
class Program {
  stdout = ''
  stderr = ''
  constructor(words) {
    const [program, ...rest] = words
    this.name = words.join(' ')
    this.process = spawn(program, rest, { stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of ['stdout', 'stderr'])
      this.process[stream].setEncoding('utf8').on('data', (text) => {
        this[stream] += text
      })
    this.ended = new Promise((resolve, reject) => {
      this.process.once('error', reject)
      this.process.once('close', (status, signal) => resolve(status ?? signal))
    })
    this.ended.catch(() => {})
    this.timer = setTimeout(() => this.process.kill('SIGKILL'), PATIENCE_MS)
    this.ended.finally(() => clearTimeout(this.timer)).catch(() => {})
  }

  /** Its exit status must be 0. @returns what it printed */
  async succeeds() {
    const status = await this.ended
    assert.equal(status, 0, `${this.name} has ended with ${status}:\n${this.stdout}${this.stderr}`)
    return this.stdout
  }

  /** Waits until it has printed that. @returns the match */
  async prints(pattern) {
    let over = false
    const end = this.ended.finally(() => {
      over = true
    })
    for (;;) {
      const match = pattern.exec(this.stdout)
      if (match !== null) return match
      assert(!over, `${this.name} has ended without printing ${pattern}:\n${this.stdout}${this.stderr}`)
      await Promise.race([end, new Promise((resolve) => this.process.stdout.once('data', resolve))])
    }
  }

  /** Rejects when it ends. */
  async fails() {
    const status = await this.ended
    assert.fail(`${this.name} has ended with ${status}:\n${this.stdout}${this.stderr}`)
  }

  /** Ends it as a service manager does. */
  async stop() {
    this.process.kill('SIGTERM')
    await this.succeeds()
  }
}

/** Waits until there is such a file. */
async function appears(path) {
  const changes = watch(dirname(path))
  const seen = on(changes, 'change')
  while (!existsSync(path)) await seen.next()
  changes.close()
}

const node = (...words) => new Program([process.execPath, ...words])
const program = (name, ...words) => new Program([join(MODULES, '.bin', name), ...words])

const cases = []
const test = (name, body) => cases.push({ name, body })

const URIS = { iwarp: 'iwarp://127.0.0.1:0', shm: 'shm:///tmp/try.sock' }

test('this machine has no compiler, and no library of RDMA', async () => {
  for (const path of process.env.PATH.split(':'))
    for (const name of ['cc', 'c++', 'gcc', 'g++', 'clang', 'make', 'cmake', 'ninja'])
      assert(!existsSync(join(path, name)), `there is ${join(path, name)}`)
  const [problem, providers] = (await node('without-rdma.mjs').succeeds()).trim().split('\n')
  assert.match(problem, /^libibverbs\.so\.1 cannot be loaded; /)
  assert.equal(providers, 'iwarp,shm')
})

for (const [provider, uri] of Object.entries(URIS)) {
  for (const file of ['ring.mjs', 'ring.cjs', 'worker.mjs', 'bundled/ring.mjs', 'bundled/ring.cjs'])
    test(`${file} over ${provider}`, async () => {
      const said = (await node(file, uri).succeeds()).trim().split('\n')
      assert.deepEqual(said, Array(file === 'worker.mjs' ? 4 : 1).fill('you said hello'))
    })
  test(`a volume over ${provider}, by both programs`, () => aVolume(uri, ['swap-server'], ['nbd-client']))
}

/** Lends memory and borrows it, by these programs, and puts a block through it. */
async function aVolume(uri, [lend, ...lends], [borrow, ...borrows]) {
  const server = program(lend, ...lends, '--listen', uri, '--memory', '64M', '--slab-size', '16M')
  const [, listening] = await server.prints(/^listening (\S+)$/m)
  const volume = ['--server', listening, '--size', '32M', '--unix', '/tmp/volume.sock']
  const client = program(borrow, ...borrows, 'serve', ...volume)
  await client.prints(/^ready /m)
  const block = randomBytes(65536)
  assert(block.equals(await throughVolume('/tmp/volume.sock', 20 * 2 ** 20, block)), 'other bytes came back')
  await client.stop()
  await server.stop()
}

test('the first example of verbs', async () => {
  const target = node('readme/target.mjs')
  await target.prints(/^listening /m)
  assert.match(await node('readme/verbs.mjs').succeeds(), /^success$/m)
  assert.match(await target.succeeds(), /^the peer wrote: hello$/m)
})
test('the first example of ring-transport', async () => {
  assert.match(await node('readme/ring-transport.mjs').succeeds(), /^you said hello$/m)
})
test('the first example of operator-kit', async () => {
  assert.match(await node('readme/operator-kit.mjs').succeeds(), /^ *\d+ +\{"memory":67108864\}$/m)
})
test('the first example of swap-server', async () => {
  assert.match(await node('readme/swap-server.mjs').succeeds(), /^15$/m)
})
test('the first example of remote-volume', async () => {
  assert.match(await node('readme/remote-volume.mjs').succeeds(), /^4$/m)
})
test('the first example of nbd-client', async () => {
  const server = program('swap-server', '--listen', 'iwarp://127.0.0.1:7471', '--memory', '1G')
  await server.prints(/^listening /m)
  const client = node('readme/nbd-client.mjs')
  // The example need not print anything when it is ready: its socket is there then.
  await Promise.race([appears('/tmp/memory.sock'), client.fails()])
  const block = randomBytes(4096)
  const once = () => throughVolume('/tmp/memory.sock', 0, block)
  // Between bind(2) and listen(2) no process listens, and nothing shows when that is over.
  const patiently = () =>
    once().catch((failure) => (failure.code === 'ECONNREFUSED' ? patiently() : assert.fail(failure)))
  assert(block.equals(await patiently()), 'other bytes came back')
  await client.stop()
  await server.stop()
})

/** Cases for the programs that our packages bring. */
function testPrograms() {
  const homes = readdirSync(join(MODULES, '@rdmakit')).map((name) => join(MODULES, '@rdmakit', name))
  const manifests = [...homes, join(MODULES, 'rdmakit')]
    .map((home) => join(home, 'package.json'))
    .filter((path) => existsSync(path))
    .map((path) => JSON.parse(readFileSync(path, 'utf8')))
  for (const name of manifests.flatMap(({ bin = {} }) => Object.keys(bin)))
    test(`${name} --help, --version`, async () => {
      assert.match(await program(name, '--help').succeeds(), new RegExp(`^usage: ${name}\\b`, 'i'))
      assert.match(await program(name, '--version').succeeds(), new RegExp(`^${name} \\d+\\.\\d+\\.\\d+\\b`))
    })
  if (manifests.some(({ name }) => name === 'rdmakit'))
    test('a volume over iwarp, by rdmakit', () =>
      aVolume(URIS.iwarp, ['rdmakit', 'swap-server'], ['rdmakit']))
}

function install() {
  const tarballs = readdirSync('/tarballs').map((name) => join('/tarballs', name))
  const words = ['install', '--offline', '--cache', '/cache', '--no-audit', '--no-fund', '--loglevel=error']
  const { status } = spawnSync(process.execPath, [NPM, ...words, ...tarballs], { stdio: 'inherit' })
  assert.equal(status, 0, 'npm install has failed')
  for (const tarball of tarballs) {
    const [, part] = /^rdmakit-(?:(.*)-)?[0-9.]+\.tgz$/.exec(basename(tarball))
    const name = part === undefined ? 'rdmakit' : `@rdmakit/${part}`
    assert(existsSync(join(MODULES, name, 'package.json')), `${name} was not installed`)
  }
}

/** As du --apparent-size: of all, and of what is more than a twentieth. */
function sizes() {
  const bytesIn = (folder) =>
    readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0)
  const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`
  const all = bytesIn(MODULES)
  const large = readdirSync(MODULES)
    .filter((name) => !name.startsWith('.'))
    .flatMap((name) =>
      name.startsWith('@') ? readdirSync(join(MODULES, name)).map((part) => `${name}/${part}`) : [name],
    )
    .map((name) => ({ name, bytes: bytesIn(join(MODULES, name)) }))
    .filter(({ bytes }) => bytes > all / 20)
    .sort((a, b) => b.bytes - a.bytes)
  return `${mebibytes(all)} (${large.map(({ name, bytes }) => `${name} ${mebibytes(bytes)}`).join(', ')})`
}

const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`
const system = existsSync('/etc/os-release')
  ? /^PRETTY_NAME="?(.*?)"?$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
  : 'Node.js alone'
console.log(`try: Node.js ${process.version} ${process.arch} on ${system}`)
const begin = performance.now()
install()
console.log(`installed, ${seconds(begin)}: ${sizes()}`)
testPrograms()
const results = []
for (const { name, body } of cases) {
  const start = performance.now()
  try {
    await body()
    results.push({ name })
    console.log(`ok: ${name}, ${seconds(start)}`)
  } catch (failure) {
    results.push({ name, failure: failure.stack })
    console.log(`FAILED: ${name}\n${failure.stack}`)
  }
}
const failed = results.filter(({ failure }) => failure !== undefined).length
console.log(`try: ${cases.length - failed} of ${cases.length} cases`)
writeFileSync('cases.json', JSON.stringify(results))
process.exit(failed === 0 ? 0 : 1)
