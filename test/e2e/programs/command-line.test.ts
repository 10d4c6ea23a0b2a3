// The output of the three programs about themselves: version, help and status; and that each is found under its name.
// Most cases start real programs, 0.1 to 0.3 s of processor time each; the help of all commands is printed by one of each.
import { spawnSync } from 'node:child_process'
import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { top } from '../../lab/base/paths.js'
import { CommandLines } from '../helpers/command-lines.js'
import {
  NBD_CLIENT,
  Program,
  RDMAKIT,
  run,
  SWAP_SERVER,
  startServe,
  startServer,
  statusIn,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const PROGRAMS = { 'swap-server': SWAP_SERVER, 'nbd-client': NBD_CLIENT, rdmakit: RDMAKIT }
const COMMANDS = {
  'swap-server': ['serve', 'status', 'reclaim', 'stop', 'help'],
  'nbd-client': ['serve', 'attach', 'detach', 'upgrade', 'status', 'help'],
  rdmakit: ['serve', 'attach', 'detach', 'upgrade', 'swap-server', 'status', 'completion', 'help'],
}
const names = Object.keys(PROGRAMS) as (keyof typeof PROGRAMS)[]
const all = names.flatMap((name) => COMMANDS[name].map((command) => [name, command] as const))

/** Printed, and nothing else. */
async function printed(script: string, ...words: string[]): Promise<string> {
  await using program = new Program(script, words)
  expect(await program.ends(), program.stderr).toEqual({ status: 0, signal: null })
  expect(program.stderr).toBe('')
  return program.stdout
}

describe.concurrent('--version', () => {
  const { version } = JSON.parse(readFileSync(join(top, 'packages/rdmakit/package.json'), 'utf8'))
  const commit = run('git', ['-C', top, 'rev-parse', 'HEAD']).stdout.trim()

  it.each(names)('of %s: its version, the commit, the Node-API of the addons, and Node.js', async (name) => {
    const text = await printed(PROGRAMS[name], '--version')
    expect(text).toMatch(/^[a-z-]+ \S+( \(commit [0-9a-f]{12}\+?\))?, Node-API 9, Node\.js v[\d.]+\n$/)
    expect(text).toContain(`${name} ${version}`)
    expect(text).toContain(`Node.js ${process.version}\n`)
    // Of the build, which may be older than the checkout.
    const built = JSON.parse(readFileSync(join(top, 'packages', name, 'dist/build.json'), 'utf8'))
    if (commit !== '') expect(text).toContain(`(commit ${built.commit})`)
    expect(await printed(PROGRAMS[name], '-V')).toBe(text)
  })

  it('has the Node-API that the addons are made for', () => {
    for (const name of ['verbs', 'ring-transport', 'nbd-client']) {
      const { binary } = JSON.parse(readFileSync(join(top, 'packages', name, 'package.json'), 'utf8'))
      expect(binary.napi_versions).toEqual([9])
    }
  })
})

describe.concurrent('help', () => {
  const lines = (text: string) => text.split('\n')
  const width = (text: string) => Math.max(...lines(text).map(({ length }) => length))

  let processes: ReadonlyMap<string, CommandLines>
  beforeAll(() => {
    processes = new Map(names.map((name) => [name, new CommandLines(PROGRAMS[name])]))
  })
  afterAll(async () => {
    for (const each of processes.values()) await each[Symbol.asyncDispose]()
  })
  /** Printed, and nothing else. */
  async function told(name: string, ...words: string[]): Promise<string> {
    const { status, stdout, stderr } = await (processes.get(name) as CommandLines).run(words, {})
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    return stdout
  }

  it.each(names)('of %s lists its commands, is wrapped, and ends in examples', async (name) => {
    const text = await printed(PROGRAMS[name], '--help')
    for (const command of COMMANDS[name]) expect(text).toMatch(new RegExp(`^  ${command}\\b`, 'm'))
    expect(width(text)).toBeLessThanOrEqual(80)
    expect(text).toMatch(/\n\nExamples:\n( {2}.*\n)+$/)
    expect(await told(name, '-h')).toBe(text)
    expect(await told(name, 'help')).toBe(text)
  })

  it.each(all)('of %s %s is the same by either way, and like that of its program', async (name, command) => {
    const text = await told(name, 'help', command)
    expect(await told(name, command, '--help')).toBe(text)
    expect(text).toMatch(new RegExp(`^Usage: ${name} ${command}\\b`))
    expect(width(text)).toBeLessThanOrEqual(80)
    if (command !== 'help') expect(text).toMatch(/\n\nExamples:\n( {2}.*\n)+$/)
  })

  it.each([50, 140])('is wrapped to a terminal of %i columns', (columns) => {
    const command = `stty cols ${columns}; ${process.execPath} ${NBD_CLIENT} help serve`
    const { stdout, status } = spawnSync('script', ['-qec', command, '/dev/null'], { encoding: 'utf8' })
    expect(status).toBe(0)
    const text = stdout.replaceAll('\r', '')
    expect(width(text)).toBeLessThanOrEqual(columns)
    expect(width(text)).toBeGreaterThan(columns - 12)
  })

  it('of examples is command lines that can be pasted', async () => {
    const text = await printed(NBD_CLIENT, 'help', 'serve')
    const [, examples] = text.split('\nExamples:\n')
    const pasted = run('sh', [
      '-c',
      `nbd_client() { printf '%s|' "$@"; echo; }; ${(examples as string).replaceAll('nbd-client ', 'nbd_client ')}`,
    ])
    expect(pasted.stdout).toContain(
      'serve|--server|iwarp://127.0.0.1:7471|--size|1G|--tcp|127.0.0.1:10809|--export|data,size=768M|--export|scratch,offset=768M|--export|data-ro,size=768M,read-only|\n',
    )
  })
})

describe('rdmakit', () => {
  it('is, as the others, the one of the clone for npx', () => {
    for (const name of names) {
      const link = join(top, 'node_modules/.bin', name)
      const { status, stdout } = run(link, ['--version'])
      expect(status).toBe(0)
      expect(stdout).toContain(`${name} `)
    }
  })

  it('says, as the others, in a clone that is not built yet, what to run', () => {
    using clone = temporaryFolder()
    writeFileSync(join(clone.path, 'package.json'), '{ "type": "module" }')
    for (const name of names) {
      cpSync(join(top, 'packages', name, 'bin'), join(clone.path, name, 'bin'), { recursive: true })
      expect(run(join(clone.path, name, 'bin', `${name}.js`), ['--help'])).toMatchObject({
        status: 71,
        stdout: '',
        stderr: `${name}: this clone is not built yet; run npm run setup\n`,
      })
    }
  })

  it('lends, serves and shows both, and says how they are', async () => {
    using folder = temporaryFolder()
    const environment = { RDMAKIT_RUN: folder.path }
    const status = async (...words: string[]) => {
      await using shown = new Program(RDMAKIT, ['status', ...words], environment)
      return { ...(await shown.ends()), text: shown.stdout }
    }
    expect(await status()).toMatchObject({
      status: 69,
      text: 'neither a swap-server nor an nbd-client is running\n',
    })
    await using server = new Program(
      RDMAKIT,
      ['swap-server', '--listen', 'iwarp://127.0.0.1:0', '--memory', '64M', '--slab-size', '16M'],
      environment,
    )
    const [, uri] = await server.prints(/^listening (\S+)$/m)
    expect(await status('--json')).toMatchObject({
      status: 0,
      text: expect.stringContaining('"clients": []'),
    })
    await using client = new Program(
      RDMAKIT,
      ['serve', '--server', uri as string, '--size', '16M', '--unix', join(folder.path, 'nbd.sock')],
      { ...environment },
    )
    await client.prints(/^ready (\S+)$/m)
    const shown = await status('--json')
    expect(shown.status).toBe(0)
    const { servers, clients } = JSON.parse(shown.text)
    expect(servers).toMatchObject([{ pid: server.process.pid }])
    expect(clients).toMatchObject([{ pid: client.process.pid, mode: 'serve' }])
    expect((await status()).text).toMatch(/^SERVER .*\n(.*\n)+TARGET /m)
    // What the other programs do is there for each of the two.
    await using stop = new Program(RDMAKIT, ['swap-server', 'stop', '--now'], environment)
    expect(await stop.ends()).toMatchObject({ status: 0 })
    expect(await server.ends()).toMatchObject({ status: 0 })
  })
})

describe('status', () => {
  it('of an nbd-client whose server is gone is 80', async () => {
    using folder = temporaryFolder()
    const [one, two] = [
      await startServer(['--memory', '32M', '--slab-size', '16M'], undefined, folder.path),
      await startServer(['--memory', '32M', '--slab-size', '16M'], undefined, folder.path),
    ]
    await using _one = one.program
    await using _two = two.program
    const { program } = await startServe(one.uri, '16M', folder.path, [
      '--server',
      two.uri,
      '--replicas',
      '2',
    ])
    await using _client = program
    const status = async () => {
      await using shown = new Program(NBD_CLIENT, ['status'], { RDMAKIT_RUN: folder.path })
      return (await shown.ends()).status
    }
    expect(await status()).toBe(0)
    await two.program.stop('SIGKILL')
    interface Status {
      servers: { state: string }[]
    }
    await until(
      () => statusIn<Status>(folder.path),
      ({ servers }) => servers.some(({ state }) => state !== 'up'),
    )
    expect(await status()).toBe(80)
  })
})
