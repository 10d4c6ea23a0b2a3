import { formatSize } from '@rdmakit/swap-server'
import { describeBackup } from './backup.js'
import { type ClientStatus, runningClients } from './runtime.js'
import { totals } from './session-log.js'

/** `16 mapped`, `13 mapped, 2 degraded, 1 refilling (43%)`. */
function slabsOf({ slabs, statistics: { refill } }: ClientStatus): string {
  const parts = Object.entries(slabs)
    .filter(([, count]) => count > 0)
    .map(([state, count]) => `${count} ${state}`)
  const progress = refill?.active ? ` (${Math.floor((100 * refill.pagesDone) / refill.pages)}%)` : ''
  return parts.join(', ') + progress
}

/** Prints what runs here: a table, or one JSON array. */
export async function printStatus(json: boolean): Promise<void> {
  const clients = (await runningClients()).map(({ status }) => status)
  if (json) {
    process.stdout.write(`${JSON.stringify(clients, null, 2)}\n`)
    return
  }
  if (clients.length === 0) {
    process.stdout.write('no nbd-client is running\n')
    return
  }
  const rows = clients.map((client) => {
    const total = totals(client.statistics)
    return [
      client.target,
      String(client.pid),
      client.swap ? 'swap' : client.mode,
      formatSize(client.size),
      formatSize(total.bytesRead),
      formatSize(total.bytesWritten),
      String(total.errors),
      slabsOf(client),
      describeBackup(client.statistics),
      client.servers
        .map(({ uri, state, reason }) => (state === 'up' ? uri : `${uri} (failed: ${reason})`))
        .join(', '),
    ]
  })
  const header = ['TARGET', 'PID', 'MODE', 'SIZE', 'READ', 'WRITTEN', 'ERRORS', 'SLABS', 'BACKUP', 'SERVERS']
  const widths = header.map((name, column) =>
    Math.max(name.length, ...rows.map((row) => row[column]?.length ?? 0)),
  )
  for (const row of [header, ...rows])
    process.stdout.write(
      `${row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd()}\n`,
    )
}
