import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { guestScripts, top } from '../base/paths.js'
import { type RunningProcess, type Shell, tail } from '../base/shell.js'
import { until } from '../base/until.js'
import type { Guest } from '../machine/guest.js'
import type { LabParts } from '../machine/lab-parts.js'
import { ensurePageChurn } from '../machine/native.js'
import { GuestPair } from '../machine/pair.js'
import { beforeTheEnd, endOf, kill, stopped, switchOff } from './systemd-ends.js'
import { stopsUnderSwap } from './systemd-stops.js'
import { device, journal, run, show, stepMs, successor, swap0, swaps } from './systemd-unit.js'
import { conclude, stallsOf, stepsTold } from './trial.js'

export interface SystemdTrial {
  /** each step, in its order, and how long it took */
  seconds: Record<string, number>
  /** of the program that swapped from the first step to the stop of the borrower's host */
  wrongPages: number
  /** seconds, by the step in which it was */
  longestStalls: Record<string, number>
  pagesIn: number
  pagesOut: number
  /** what was not as it must be */
  faults: string[]
}

const example = join(top, 'examples/two-hosts')
const lend = 'rdmakit-swap-server@lend'

/**
 * The services of examples/two-hosts under systemd, on two guests, set up by the words of its README: their start, what
 * keeps them out of swap, a crash, restart, reload, and the end of their hosts.
 */
export async function systemdTrial(
  parts: LabParts,
  print: (line: string) => void = () => {},
): Promise<SystemdTrial> {
  const program = await ensurePageChurn()
  const trial: SystemdTrial = {
    seconds: {},
    wrongPages: 0,
    longestStalls: {},
    pagesIn: 0,
    pagesOut: 0,
    faults: [],
  }
  const must = (holds: boolean, what: string): void => {
    if (!holds) trial.faults.push(what)
  }
  let churn: RunningProcess | undefined
  const step = async <T>(name: string, body: () => Promise<T>): Promise<T> => {
    const [began, stalls] = [Date.now(), stallsOf(churn).length]
    const result = await body()
    trial.seconds[name] = (Date.now() - began) / 1000
    if (churn !== undefined) {
      // The program goes on, with whatever the step has stopped.
      const [swapping, told] = [churn, stepsTold(churn)]
      await until(`the program goes on after: ${name}`, stepMs, () => stepsTold(swapping) > told)
      trial.longestStalls[name] = Math.max(0, ...stallsOf(churn).slice(stalls))
    }
    print(`${name}: ${trial.seconds[name]?.toFixed(1)} s`)
    return result
  }

  const guest = { memoryMiB: 1024, init: 'systemd', deadlineMs: stepMs } as const
  await using pair = await step('boot', () =>
    GuestPair.boot(parts, { server: guest, client: { ...guest, diskMiB: 256 } }),
  )
  const { server: lender } = pair
  let borrower = pair.client
  try {
    await step('start of the lender', () => install(lender, 'lender', '10.0.0.1'))
    await step('start of the borrower', () => install(borrower, 'borrower', '10.0.0.2'))
    must((await swaps(borrower)).includes(device), `${device} is no swap after the start`)
    for (const [host, unit] of [
      [lender, lend],
      [borrower, swap0],
    ] as const) {
      const { ActiveState, SubState, MemorySwapMax, ControlGroup } = await show(host, unit)
      must(ActiveState === 'active' && SubState === 'running', `${unit} is ${ActiveState}, ${SubState}`)
      const limit = (await run(host, ['cat', `/sys/fs/cgroup${ControlGroup}/memory.swap.max`])).trim()
      must(
        MemorySwapMax === '0' && limit === '0',
        `${unit} may swap: MemorySwapMax=${MemorySwapMax}, ${limit}`,
      )
    }
    const largest = await run(borrower, 'cat /sys/block/nbd0/queue/max_sectors_kb')
    must(largest.trim() === '512', `requests of the kernel have at most ${largest.trim()} KiB`)
    // Process 1, which starts nbd-client again.
    const first = (await run(borrower, 'cat /sys/fs/cgroup/init.scope/memory.swap.max')).trim()
    must(first === '0', `systemd itself may swap: ${first}`)
    const said = await journal(borrower, swap0)
    must(!said.includes('warning'), `${swap0} warns:\n${said}`)
    must((await journal(lender, lend)).includes('"ready"'), `${lend} has no log in the journal`)

    churn = borrower.start(['sh', join(guestScripts, 'load', 'churn.sh'), program, '64M', String(32 << 20)])
    await churn.waitForLine(/^churning/, stepMs)
    const before = await swapped(borrower)

    await step('SIGKILL of nbd-client', () => kill(borrower))
    must((await show(borrower, swap0)).NRestarts === '1', `${swap0} was not started again once`)
    must((await journal(borrower, swap0)).includes(`taking over ${device}`), `${device} was not taken over`)
    const active = (await show(borrower, swap0)).ActiveEnterTimestampMonotonic
    await step('reload of the borrower', () => successor(borrower, `systemctl reload ${swap0}`))
    const reloaded = await show(borrower, swap0)
    must(
      reloaded.NRestarts === '1' && reloaded.ActiveEnterTimestampMonotonic === active,
      `${swap0} did not stay active while it was reloaded`,
    )
    // Another process of the unit has started the one that systemd has to watch now.
    await step('SIGKILL after the reload', () => kill(borrower))
    await step('restart of the borrower, now with a backup', () => successor(borrower, restartWithBackup))
    const { clients } = JSON.parse(await run(borrower, 'rdmakit status --json'))
    const [{ statistics }] = clients
    must(statistics.backup?.working === true, `${swap0} has no backup`)
    must(!(await journal(borrower, swap0)).includes('swapoff'), `${device} was swapped off in between`)
    const { MainPID, ControlGroup } = await show(borrower, swap0)
    const inSwap = await run(
      borrower,
      `cat '/sys/fs/cgroup${ControlGroup}/memory.swap.current'; grep VmSwap /proc/${MainPID}/status`,
    )
    must(/^0\nVmSwap:\s+0 kB\n$/.test(inSwap), `${swap0} is in swap: ${inSwap}`)
    await step('reload of the lender', async () => {
      await run(lender, `systemctl reload ${lend}`)
      await until('the tenants are read anew', stepMs, async () =>
        (await journal(lender, lend)).includes('tenants reloaded'),
      )
    })
    await step('attach by hand, from a scope', () => attachByHand(borrower, must))
    for (const [order, body] of stopsUnderSwap(borrower, must)) await step(order, body)

    const end = await churn.stop(stepMs)
    churn = undefined
    const report = /^\{.*\}$/m.exec(end.stdout)?.[0]
    if (report === undefined) throw new Error(`page-churn ended with ${end.status ?? `signal ${end.signal}`}`)
    trial.wrongPages = (JSON.parse(report) as { wrongPages: number }).wrongPages
    must(trial.wrongPages === 0, `${trial.wrongPages} wrong pages`)
    const errors = (await run(borrower, 'dmesg'))
      .split('\n')
      .filter((line) => /I\/O error|-error on swap/.test(line))
    must(errors.length === 0, `the kernel saw I/O errors:\n${tail(errors.join('\n'))}`)
    const after = await swapped(borrower)
    trial.pagesIn = after.in - before.in
    trial.pagesOut = after.out - before.out
    must(trial.pagesIn > 1000 && trial.pagesOut > 1000, 'the program hardly swapped')

    for (const [order, before] of Object.entries(beforeTheEnd)) {
      if (borrower.isOff)
        await step(`start of another borrower, for ${order}`, async () => {
          borrower = await pair.bootClient()
          await install(borrower, 'borrower', '10.0.0.2')
        })
      const goodbyes = await saidGoodbye(lender)
      await step(`${order}, poweroff`, () => switchOff(borrower, order, before, must))
      must((await saidGoodbye(lender)) === goodbyes + 1, `the lender was not told of the end after ${order}`)
    }
    await step('SIGKILL of swap-server', async () => {
      const { MainPID } = await show(lender, lend)
      await run(lender, `systemctl kill --kill-who=main -s KILL ${lend}`)
      await until('the lender is back', stepMs, async () => {
        const now = await show(lender, lend)
        return now.ActiveState === 'active' && now.MainPID !== MainPID
      })
    })
    await step('stop of the lender', () => run(lender, `systemctl stop ${lend}`))
    const { ActiveState, Result } = await show(lender, lend)
    must(
      ActiveState === 'inactive' && Result === 'success',
      `${lend} is ${ActiveState} after stop: ${Result}`,
    )
    await run(lender, `systemctl start ${lend}`)
    await step('end of the lender', () => endOf(lender, [stopped(lend)], must))
    return trial
  } catch (error) {
    for (const [host, unit] of [
      [lender, lend],
      [borrower, swap0],
    ] as const)
      print(
        `${unit}:\n${tail((await host.exec(`systemctl status -n 40 ${unit}`, { deadlineMs: stepMs }).catch(() => ({ stdout: '' }))).stdout, 60)}`,
      )
    throw error
  }
}

/** Does what the example's README says for a host, with less memory. */
async function install(host: Guest, part: 'lender' | 'borrower', address: string): Promise<void> {
  const readme = readFileSync(join(example, 'README.md'), 'utf8')
  const blockOf = (heading: string): string => {
    const block = new RegExp(`^## ${heading}$[^]*?^\`\`\`sh$([^]*?)^\`\`\`$`, 'm').exec(readme)?.[1]
    if (block === undefined) throw new Error(`the README has no commands "${heading}"`)
    return block
  }
  await run(host, ['sh', join(guestScripts, 'two-hosts.sh'), top, dirname(process.execPath), address])
  const commands = `
    set -eux
    # No server fails here, but on a busy machine an emulated one stands still for seconds.
    editor() {
      sed -i -e 's/^MEMORY=.*/MEMORY=256M/' -e 's/^SIZE=.*/SIZE=128M/' \\
        -e 's/^\\(OPTIONS="--device.*\\)"$/\\1 --timeout 30"/' "$@"
    }
    sudo() { shift; user=$1; shift; runuser -u "$user" -- env "$@"; }
    cd /opt/rdmakit
    ${blockOf('On both').replace(/^git clone.*$/m, '')}
    ${blockOf(part === 'lender' ? 'On the lender' : 'On the borrower')}`
  await run(host, ['bash', '-c', commands])
}

/** The host has a disk of its own, where the unit may write. */
const restartWithBackup = `
  set -eu
  modprobe virtio_blk && modprobe ext4 && mkfs.ext4 -q /dev/vda && mount /dev/vda /var/lib/rdmakit
  sed -i 's|^\\(OPTIONS="--device.*\\)"$|\\1 --backup /var/lib/rdmakit/swap0.backup"|' /etc/rdmakit/swap0.env
  systemctl restart ${swap0}`

/** As from an operator's shell, which is in a scope of its session: nbd-client moves itself into one of its own. */
async function attachByHand(host: Shell, must: (holds: boolean, what: string) => void): Promise<void> {
  const attach = 'rdmakit attach --server rdma://10.0.0.1:7471 --size 16M --device /dev/nbd1 --swap'
  const client = host.start(
    `exec systemd-run --scope --quiet sh -c 'cat /proc/self/cgroup; exec ${attach} --tenant prod --key-file /etc/rdmakit/swap0.key'`,
  )
  await client.waitForLine(/^attached /, stepMs)
  const shell = /^0::(.*\.scope)$/m.exec(client.stdout)?.[1]
  const { clients } = JSON.parse(await run(host, 'rdmakit status --json'))
  const { pid } = clients.find(({ target }: { target: string }) => target === '/dev/nbd1')
  const group = /^0::(.*)$/m.exec(await run(host, `cat /proc/${pid}/cgroup`))?.[1]
  const limit = (await run(host, ['cat', `/sys/fs/cgroup${group}/memory.swap.max`])).trim()
  must(
    shell !== undefined && group !== shell && group?.endsWith('.scope') === true && limit === '0',
    `attach by hand went from ${shell} to ${group}, with memory.swap.max ${limit}`,
  )
  must(!client.stderr.includes('warning'), `attach by hand warns:\n${client.stderr}`)
  const { status } = await client.stop(stepMs)
  must(status === 0, `attach by hand ended with ${status}`)
}

/** Sessions of the lender that ended in good order. */
const saidGoodbye = async (host: Shell): Promise<number> =>
  (await journal(host, lend)).match(/the client said goodbye/g)?.length ?? 0

async function swapped(host: Shell): Promise<{ in: number; out: number }> {
  const vmstat = await run(host, 'cat /proc/vmstat')
  const pages = (name: string): number => Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(vmstat)?.[1])
  return { in: pages('pswpin'), out: pages('pswpout') }
}

/** The command: prints what it saw; 0 when all is well. */
export async function systemdCommand(parts: LabParts, say: (line: string) => void): Promise<number> {
  const trial = await systemdTrial(parts, say)
  return conclude({ ...trial, faults: trial.faults.length }, trial.faults, say)
}
