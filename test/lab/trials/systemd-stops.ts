import { type Shell, tail } from '../base/shell.js'
import { until } from '../base/until.js'
import type { Guest } from '../machine/guest.js'
import { device, journal, run, show, stepMs, successor, swap0, swaps } from './systemd-unit.js'

const group = '/sys/fs/cgroup/churn'

type Step = readonly [order: string, body: () => Promise<void>]

/**
 * The orders in which the borrower's unit may be told to stop while its pages are in swap and a program uses them. After
 * each the swap is off, nothing is left of the device, and the unit is started again.
 */
export function stopsUnderSwap(host: Guest, must: (holds: boolean, what: string) => void): readonly Step[] {
  const systemctl = (words: string) => run(host, `systemctl ${words} ${swap0}`)
  const reload = () => successor(host, `systemctl reload ${swap0}`)
  const orders: Record<string, () => Promise<unknown>> = {
    stop: () => systemctl('stop'),
    'reload, stop': async () => {
      await reload()
      await systemctl('stop')
    },
    'reload, reload, stop': async () => {
      await reload()
      await reload()
      await systemctl('stop')
    },
    'upgrade by hand, stop': async () => {
      await successor(host, `rdmakit upgrade ${device}`)
      await systemctl('stop')
    },
    'reload, stop while it is under way': async () => {
      await duringReload(host)
      await systemctl('stop')
    },
    'reload, reload, stop while that is under way': async () => {
      await reload()
      await duringReload(host)
      await systemctl('stop')
    },
    'reload, restart, stop': async () => {
      await reload()
      await successor(host, `systemctl restart ${swap0}`)
      await systemctl('stop')
    },
    'reload, SIGKILL, stop while it is taken over': async () => {
      await reload()
      await duringTakeOver(host)
      await systemctl('stop')
    },
  }
  return Object.entries(orders).map(([order, stop]) => [order, () => stopAndStart(host, order, stop, must)])
}

/** Has the unit reload, and waits until the running process has heard of it. */
async function duringReload(host: Guest): Promise<void> {
  const begun = async () => (await journal(host, swap0)).split('starting the successor').length
  const before = await begun()
  await run(host, `systemctl --no-block reload ${swap0}`)
  await until('the reload has begun', stepMs, async () => (await begun()) > before)
}

/** Kills the process that has the device, and waits until the next one takes it over. */
export async function duringTakeOver(host: Shell): Promise<void> {
  // One that is stopped before it has said so ends by the signal, and leaves the device.
  const begun = async () => (await journal(host, swap0)).split('taking over').length
  const before = await begun()
  await run(host, `systemctl kill --kill-who=main -s KILL ${swap0}`)
  await until('another process takes the device over', stepMs, async () => (await begun()) > before)
}

async function stopAndStart(
  host: Guest,
  order: string,
  stop: () => Promise<unknown>,
  must: (holds: boolean, what: string) => void,
): Promise<void> {
  const used = async () => Number((await swaps(host)).split(/\s+/)[3])
  await until('pages are in swap', stepMs, async () => (await used()) > 8 * 1024)
  const limit = (await run(host, `cat ${group}/memory.max; echo max >${group}/memory.max`)).trim()
  await stop()
  const { ActiveState, Result } = await show(host, swap0)
  const left = await run(host, `grep nbd0 /proc/swaps || true; ls /sys/block/nbd0/pid 2>/dev/null || true`)
  must(
    ActiveState === 'inactive' && Result === 'success' && left === '',
    `after ${order} the unit is ${ActiveState}, ${Result}, and this is left: ${left}\n${tail(await journal(host, swap0), 20)}`,
  )
  await run(host, `systemctl start ${swap0} && echo ${limit} >${group}/memory.max`)
}
