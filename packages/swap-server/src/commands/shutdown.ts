import { formatSize } from '@rdmakit/operator-kit'
import type { SwapServer } from '../server/server.js'

/** Reports an event of a server's end, as JSON or as text. */
export type Say = (event: string, fields: Record<string, unknown>, text: string) => void

/**
 * Ends a server in good order: its clients are asked to move what they have here, then it closes. It waits for those
 * that can, `patience` milliseconds at most, and says what stays and ends with it.
 * @param now aborts the wait
 */
export async function endServer(
  server: SwapServer,
  { patience, now, say }: { readonly patience: number; readonly now: AbortSignal; readonly say: Say },
): Promise<void> {
  const { lending } = server
  const lent = lending.lent
  if (lent > 0 && patience > 0 && !now.aborted) {
    const seconds = Math.round(patience / 1000)
    say(
      'draining',
      { bytes: lent, seconds },
      `clients are asked to move ${formatSize(lent)} to other servers, for ${seconds} s at most; a second signal ends this at once`,
    )
    await lending.drain(patience, now)
  }
  const staying = server.holders
  await server.close()
  for (const { client, peer, bytes } of staying)
    say(
      'lost',
      { client, peer, bytes },
      `${formatSize(bytes)} of ${client} at ${peer} ended with this server`,
    )
}
