// The trial's queries to systemd and the kernel on a guest.
import type { Command, Shell } from '../base/shell.js'
import { until } from '../base/until.js'

/** The borrower's unit, and its device. */
export const swap0 = 'rdmakit-nbd@swap0'
export const device = '/dev/nbd0'
export const stepMs = 600_000

/** However slow the machine is that emulates the host. */
export const run = (host: Shell, command: Command): Promise<string> =>
  host.run(command, { deadlineMs: stepMs })

export async function show(host: Shell, unit: string): Promise<Record<string, string>> {
  const names =
    'ActiveState,SubState,ActiveEnterTimestampMonotonic,MainPID,NRestarts,MemorySwapMax,ControlGroup,Result'
  const lines = (await run(host, `systemctl show -p ${names} ${unit}`)).trim().split('\n')
  return Object.fromEntries(lines.map((line) => line.split(/=(.*)/s).slice(0, 2)))
}

export const journal = (host: Shell, unit: string): Promise<string> =>
  run(host, `journalctl -o cat -u ${unit}`)

/** The lines of /proc/swaps without the first. */
export const swaps = async (host: Shell): Promise<string> =>
  (await run(host, 'cat /proc/swaps')).split('\n').slice(1).join('\n')

/** Lets a command bring another process for the borrower's device, and waits until that has it. */
export async function successor(host: Shell, command: string): Promise<void> {
  const before = (await show(host, swap0)).MainPID
  await run(host, command)
  await until('another process has the device', stepMs, async () => {
    const { ActiveState, SubState, MainPID } = await show(host, swap0)
    return ActiveState === 'active' && SubState === 'running' && MainPID !== before && MainPID !== '0'
  })
}
