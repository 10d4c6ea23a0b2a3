// The units and files of examples/two-hosts: systemd accepts them, and the programs the command lines in them.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { expect, it } from 'vitest'
import { top } from '../../lab/base/paths.js'
import {
  endWithProcess,
  PATIENCE_MS,
  Program,
  RDMAKIT,
  run,
  SWAP_SERVER,
  temporaryFolder,
  until,
} from '../helpers/processes.js'

const EXAMPLE = join(top, 'examples/two-hosts')
const UNITS = { lend: 'rdmakit-swap-server', swap0: 'rdmakit-nbd' } as const
type Instance = keyof typeof UNITS

const readUnit = (instance: Instance) =>
  readFileSync(join(EXAMPLE, 'systemd', `${UNITS[instance]}@.service`), 'utf8')

/** The values of a setting, `%i` and continued lines resolved. */
function settings(instance: Instance, name: string): string[] {
  const lines = readUnit(instance)
    .replaceAll(/\\\n\s*/g, '')
    .replaceAll('%i', instance)
    .split('\n')
  return lines.filter((line) => line.startsWith(`${name}=`)).map((line) => line.slice(name.length + 1))
}

/** `A=b` and `A="b c"`, as EnvironmentFile= reads them. */
function environment(path: string): Map<string, string> {
  const lines = readFileSync(path, 'utf8').split('\n')
  return new Map(
    lines
      .filter((line) => /^\w+=/.test(line))
      .map((line) => [line.split('=', 1)[0] as string, line.replace(/^\w+="?|"$/g, '')]),
  )
}

/** The words of ExecStart=: `$A` alone is split at spaces, `${A}` stays one word (systemd.service(5)). */
function commandLine(instance: Instance, folder: string): string[] {
  const values = environment(join(EXAMPLE, instance === 'lend' ? 'lender' : 'borrower', `${instance}.env`))
  const value = (name: string) => {
    const found = values.get(name)
    if (found === undefined) throw new Error(`${instance}.env has no ${name}`)
    return found
  }
  const [program, ...words] = (settings(instance, 'ExecStart')[0] ?? '').split(' ')
  expect(program).toBe('/usr/local/bin/rdmakit')
  return words
    .flatMap((word) =>
      /^\$\w+$/.test(word)
        ? value(word.slice(1)).split(' ')
        : [word.replaceAll(/\$\{(\w+)\}/g, (_, name) => value(name))],
    )
    .map((word) =>
      word
        .replace(/^\/(etc|var\/log|run)\/rdmakit/, folder)
        .replaceAll('rdma://10.0.0.1:7471', `shm://${folder}/rdma`)
        .replaceAll('iwarp://10.0.0.1:7472', `shm://${folder}/iwarp`)
        .replace(/^10\.0\.0\.\d:\d+$/, '127.0.0.1:0'),
    )
}

const rules = () => readFileSync(join(EXAMPLE, 'alerts.yml'), 'utf8')

/** The names of what a program serves to Prometheus. */
async function metricNames(program: Program): Promise<string[]> {
  const [, uri] = await program.prints(/^metrics (\S+)$/m)
  const text = await (await fetch(uri as string)).text()
  return [...text.matchAll(/^# TYPE (\w+) (\w+)$/gm)].flatMap(([, name, type]) =>
    type === 'histogram' ? [`${name}_bucket`] : [name as string],
  )
}

/** A folder with the example's files, as safe as its README makes them. */
function exampleFolder() {
  const folder = temporaryFolder()
  for (const file of ['lender/lend.tenants.json', 'borrower/swap0.key']) {
    const path = join(folder.path, file.split('/')[1] as string)
    copyFileSync(join(EXAMPLE, file), path)
    chmodSync(path, 0o600)
  }
  return folder
}

/** A service manager's end of sd_notify(3). */
async function notifySocket(folder: string, name: string) {
  const path = join(folder, `${name}.notify`)
  // A second message, the barrier, comes with a descriptor, and its sender waits until that is closed.
  const program = `import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
print("bound", flush=True)
print(s.recv(4096).decode(), flush=True)
barrier, descriptors, _, _ = socket.recv_fds(s, 4096, 1)
print(barrier.decode(), len(descriptors), flush=True)`
  const listener = spawn('python3', ['-c', program, path], { stdio: ['ignore', 'pipe', 'inherit'] })
  let text = ''
  listener.stdout.setEncoding('utf8').on('data', (piece: string) => {
    text += piece
  })
  await once(listener.stdout, 'data')
  return {
    path,
    received: async () => {
      if (listener.exitCode === null)
        await once(listener, 'exit', { signal: AbortSignal.timeout(PATIENCE_MS) })
      return text.split('\n').slice(1, -1)
    },
    [Symbol.dispose]: () => void listener.kill('SIGKILL'),
  }
}

it('systemd has nothing to say about the units', () => {
  using folder = temporaryFolder()
  const bin = join(folder.path, 'bin')
  mkdirSync(bin)
  symlinkSync('/bin/true', join(bin, 'rdmakit'))
  const units = (Object.keys(UNITS) as Instance[]).map((instance) => {
    const unit = join(folder.path, `${UNITS[instance]}@${instance}.service`)
    writeFileSync(unit, readUnit(instance).replaceAll('/usr/local/bin', bin))
    return unit
  })
  expect(run('systemd-analyze', ['verify', ...units])).toEqual({ status: 0, stdout: '', stderr: '' })
})

/** The same volume without a device of the kernel's, and small. */
function served(words: readonly string[], folder: string): string[] {
  const withValue = ['--state', '--device', '--swap-priority']
  const kept = words.filter(
    (word, at) => ![...withValue, '--swap'].includes(word) && !withValue.includes(words[at - 1] ?? ''),
  )
  expect(kept.length).toBeLessThan(words.length)
  kept[kept.indexOf('--size') + 1] = '64M'
  return ['serve', ...kept.slice(1), '--unix', join(folder, 'nbd.sock')]
}

it('lender and borrower start as in the example, tell systemd, agree on the key, and have what the alerts use', async () => {
  using folder = exampleFolder()
  using manager = await notifySocket(folder.path, 'lender')
  await using server = new Program(RDMAKIT, commandLine('lend', folder.path), {
    RDMAKIT_RUN: folder.path,
    NOTIFY_SOCKET: manager.path,
  })
  expect(await manager.received()).toEqual([
    'READY=1',
    `STATUS=lends 16 GiB at shm://${folder.path}/rdma, shm://${folder.path}/iwarp`,
    'BARRIER=1 1',
  ])
  expect(server.stdout).toMatch(/^listening .*\/iwarp$/m)

  const attach = commandLine('swap0', folder.path)
  const help = run(process.execPath, [RDMAKIT, 'attach', '--help']).stdout
  for (const option of attach.filter((word) => word.startsWith('--')))
    expect(help).toMatch(new RegExp(`^  ${option} `, 'm'))
  using clientManager = await notifySocket(folder.path, 'borrower')
  await using client = new Program(RDMAKIT, served(attach, folder.path), {
    RDMAKIT_RUN: folder.path,
    NOTIFY_SOCKET: clientManager.path,
  })
  const socket = encodeURI(join(folder.path, 'nbd.sock'))
  expect(await clientManager.received()).toEqual([
    'READY=1',
    `STATUS=serves nbd+unix:///?socket=${socket}`,
    'BARRIER=1 1',
  ])

  const exported = [...(await metricNames(server)), ...(await metricNames(client))]
  const used = new Set(rules().match(/rdmakit_\w+/g))
  expect(used.size).toBeGreaterThan(10)
  expect([...used].filter((name) => !exported.includes(name))).toEqual([])
  expect(await client.stop()).toMatchObject({ status: 0, signal: null })
  expect(await server.stop()).toMatchObject({ status: 0, signal: null })
})

it('has a section of the runbook for each alert, and no other', () => {
  const alerts = [...rules().matchAll(/^ +- alert: (\w+)$/gm)].map(([, name]) => name)
  const runbook = readFileSync(join(top, 'docs/operations.md'), 'utf8')
  expect([...runbook.matchAll(/^### (\w+)$/gm)].map(([, name]) => name)).toEqual(alerts)
})

it('a service manager that cannot be told is a line in the log, and no end', async () => {
  using folder = temporaryFolder()
  await using server = new Program(
    SWAP_SERVER,
    ['--listen', `shm://${folder.path}/s`, '--memory', '8M', '--slab-size', '1M'],
    { RDMAKIT_RUN: folder.path, NOTIFY_SOCKET: join(folder.path, 'nobody') },
  )
  await server.prints(/^listening /m)
  await server.says(/sd_notify: .*ENOENT/)
  expect(await server.stop()).toMatchObject({ status: 0, signal: null })
})

it('the program accepts the command line with which systemd reloads a borrower', () => {
  using folder = temporaryFolder()
  const [program, ...words] = (settings('swap0', 'ExecReload')[0] ?? '').replace('$MAINPID', '1').split(' ')
  expect(program).toBe('/usr/local/bin/rdmakit')
  const reload = run('env', [`RDMAKIT_RUN=${folder.path}`, process.execPath, RDMAKIT, ...words])
  expect(reload).toEqual({ status: 1, stdout: '', stderr: 'nbd-client: process 1 has no device\n' })
})

/** The script with which systemd stops a borrower whose state folder is `folder`; it waits a second for each try. */
function stopScript(folder: string): string {
  const [, script] = /^\/bin\/sh -c '(.*)'$/.exec(settings('swap0', 'ExecStop')[0] ?? '') ?? []
  return (script as string)
    .replaceAll('%n', 'rdmakit-nbd@swap0.service')
    .replaceAll('/run/rdmakit/swap0', folder)
    .replaceAll('flock -w 30 ', 'flock -w 1 ')
    .replaceAll('$$', '$')
}

/** Runs it while systemd does `job`, with `first` for main process, and `now` for what took its place. */
function startStop(folder: string, job: string, first: number, now: number, before = '') {
  const answers = [
    `"list-jobs --no-legend rdmakit-nbd@swap0.service") echo "17 rdmakit-nbd@swap0.service ${job} running";;`,
    `"show -p MainPID --value rdmakit-nbd@swap0.service") echo ${now};;`,
  ]
  const systemctl = join(folder, 'systemctl')
  writeFileSync(systemctl, `#!/bin/sh\ncase "$*" in\n${answers.join('\n')}\nesac\n`, { mode: 0o700 })
  const stop = endWithProcess(
    spawn('/bin/sh', ['-c', before + stopScript(folder)], {
      env: { PATH: `${folder}:${process.env.PATH}`, MAINPID: String(first) },
      stdio: 'ignore',
    }),
  )
  return { stop, over: once(stop, 'exit', { signal: AbortSignal.timeout(PATIENCE_MS) }) }
}

/** A process that holds the folder's lock, like the owner of the device, until its stdin ends. It reports SIGTERM. */
async function startHolder(folder: string) {
  const program = `import fcntl, signal, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
print("holds", flush=True)
sys.stdin.read()`
  const holder = endWithProcess(
    spawn('python3', ['-c', program, join(folder, 'lock')], { stdio: ['pipe', 'pipe', 'inherit'] }),
  )
  const lines = createInterface({ input: holder.stdout })[Symbol.asyncIterator]()
  expect((await lines.next()).value).toBe('holds')
  return { holder, lines }
}

it.each([
  ['restart', 'SIGKILL'],
  ['stop', 'SIGTERM'],
] as const)('of a borrower, systemctl %s means %s', async (job, signal) => {
  using folder = temporaryFolder()
  const main = endWithProcess(spawn('sleep', ['60']))
  const ended = once(main, 'exit')
  const { over } = startStop(folder.path, job, main.pid as number, 0)
  expect(await over).toEqual([0, null])
  expect(await ended).toEqual([null, signal])
})

it('of a borrower that was reloaded, systemctl stop waits for whoever has the device, which systemd does not', async () => {
  using folder = temporaryFolder()
  const { holder, lines } = await startHolder(folder.path)
  const { stop, over } = startStop(folder.path, 'stop', holder.pid as number, holder.pid as number)
  expect((await lines.next()).value).toBe('told')
  // As systemctl kill -s TERM does to all processes of the unit: the swapoff is tried again.
  stop.kill('SIGTERM')
  expect((await lines.next()).value).toBe('told')
  expect(stop.exitCode).toBeNull()
  expect(stop.signalCode).toBeNull()
  holder.stdin.end()
  expect(await over).toEqual([0, null])
})

it('of a borrower that is just being reloaded, systemctl stop means the process that gets the device', async () => {
  using folder = temporaryFolder()
  const { holder, lines } = await startHolder(folder.path)
  // It handed the device over and had ended before it was told.
  const before = endWithProcess(spawn('true'))
  await once(before, 'exit')
  const { over } = startStop(folder.path, 'stop', before.pid as number, holder.pid as number)
  expect((await lines.next()).value).toBe('told')
  holder.stdin.end()
  expect(await over).toEqual([0, null])
})

it('of a borrower that was reloaded, systemctl restart waits until nothing of the old process is left', async () => {
  using folder = temporaryFolder()
  // It has no lock any more, and takes its time to end.
  const dying = endWithProcess(spawn('sleep', ['60']))
  const waits = join(folder.path, 'waits')
  const slowly = `kill() { :; }; tail() { echo >${waits}; command tail "$@"; };`
  const pid = dying.pid as number
  const { stop, over } = startStop(folder.path, 'restart', pid, pid, slowly)
  await until(
    () => existsSync(waits),
    (it) => it,
  )
  expect(stop.exitCode).toBeNull()
  dying.kill('SIGKILL')
  expect(await over).toEqual([0, null])
})

it('of a borrower without a process, systemctl stop waits for nobody', async () => {
  using folder = temporaryFolder()
  const { holder } = await startHolder(folder.path)
  const { over } = startStop(folder.path, 'stop', 0, 0)
  expect(await over).toEqual([0, null])
  holder.stdin.end()
})
