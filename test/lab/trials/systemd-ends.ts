// How the hosts of the trial are switched off.
import { type Shell, tail } from '../base/shell.js'
import type { Guest } from '../machine/guest.js'
import { duringTakeOver } from './systemd-stops.js'
import { device, run, stepMs, successor, swap0, swaps } from './systemd-unit.js'

/** Its unit starts another one. */
export const kill = (host: Shell): Promise<void> =>
  successor(host, `systemctl kill --kill-who=main -s KILL ${swap0}`)

/** What brings another process for the borrower's device before its host is switched off. */
export const beforeTheEnd: Readonly<Record<string, (host: Shell) => Promise<void>>> = {
  reload: (host) => successor(host, `systemctl reload ${swap0}`),
  restart: (host) => successor(host, `systemctl restart ${swap0}`),
  'upgrade by hand': (host) => successor(host, `rdmakit upgrade ${device}`),
  SIGKILL: kill,
  'SIGKILL, while it is taken over': duringTakeOver,
}

/** With pages in swap, and a network that goes when systemd stops it. */
export async function switchOff(
  host: Guest,
  order: string,
  before: (host: Shell) => Promise<void>,
  must: (holds: boolean, what: string) => void,
): Promise<void> {
  await run(
    host,
    `
    mkdir -p /sys/fs/cgroup/churn
    echo 32M >/sys/fs/cgroup/churn/memory.max
    echo $$ >/sys/fs/cgroup/churn/cgroup.procs
    head -c 48M /dev/urandom >/dev/shm/held
    echo max >/sys/fs/cgroup/churn/memory.max`,
  )
  await before(host)
  const used = Number((await swaps(host)).split(/\s+/)[3])
  must(used > 8 * 1024, `only ${used} KiB were in swap at the end after ${order}`)
  await endOf(host, [`swapoff ${device}: bringing its pages back`, stopped(swap0)], must)
}

export const stopped = (unit: string): string => `${unit}.service: Deactivated successfully`

/** Switches a host off, whose journal must have these lines in this order, before the network goes, and no error. */
export async function endOf(
  host: Guest,
  inOrder: readonly string[],
  must: (holds: boolean, what: string) => void,
): Promise<void> {
  const told = host.start('exec journalctl -f -n 1 -o cat')
  await told.waitForLine(/./, stepMs)
  host.start('systemctl poweroff')
  await host.off(stepMs)
  const lines = told.stdout.split('\n')
  const at = [...inOrder, 'the network goes'].map((text) => lines.findIndex((line) => line.includes(text)))
  const wrong = lines.some((line) => /I\/O error|Failed with result|[Tt]imed out/.test(line))
  must(
    !wrong && at.every((line, index) => line > (at[index - 1] ?? -1)),
    `${host.name} ended like this:\n${tail(told.stdout, 80)}`,
  )
}
