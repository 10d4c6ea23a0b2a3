import { NO_TAKE_OVER, nextTakeOver, type SessionOptions, SwapServerError } from '@rdmakit/swap-server'
import { FencedError } from '../servers/fenced-error.js'
import { endSession } from '../servers/resume-session.js'
import type { KeptVolume } from './kept-volume.js'

/**
 * Gives back what a volume that nobody can use any more still has at its servers. What a client has there is not given
 * back: it is another process's, which goes on with it from a copy of the folder.
 */
export async function endKept(
  { servers, takeOver = NO_TAKE_OVER }: KeptVolume,
  options: SessionOptions,
  progress: (step: string) => void,
): Promise<void> {
  const unattended = { ...options, takeOver: nextTakeOver(takeOver), unattended: true }
  await Promise.all(
    servers.map(async ({ uris, identity }) => {
      try {
        await endSession(uris, identity, unattended)
      } catch (failure) {
        // Else it has ended, or ends when it has lingered.
        const another =
          failure instanceof FencedError || (failure instanceof SwapServerError && failure.code === 'EBUSY')
        if (another) progress(`${uris.join(' or ')} keeps the volume's memory: ${failure.message}`)
      }
    }),
  )
}
