import { NO_TAKE_OVER, nextTakeOver, type SessionOptions, SwapServerError } from '@rdmakit/swap-server'
import { FencedError } from '../servers/fenced-error.js'
import { endSession } from '../servers/resume-session.js'
import type { KeptVolume } from './kept-volume.js'

/**
 * Gives back the memory that an unusable volume still has at its servers. Memory that a client is using is
 * not given back: it belongs to another process, which uses it with a copy of the folder.
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
