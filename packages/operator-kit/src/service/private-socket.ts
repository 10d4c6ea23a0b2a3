import { once } from 'node:events'
import { chmodSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import type { Server } from 'node:net'
import { dirname, join } from 'node:path'

/**
 * Listens on a Unix socket of mode 0600 that is never anybody else's to use, whatever the mask of the process: it is
 * made in a folder of mode 0700 beside `path`, and moved when it is ready. The mask itself is of all threads at once, and
 * a Worker may not change it.
 * @param path what is there is replaced
 * @throws EINVAL: it is too long for a socket
 */
export async function listenPrivately(server: Server, path: string): Promise<void> {
  // Not longer than the name of a control socket, or what fits at the end might not in between. A dot alone is no name
  // to join(): the folder would be beside that of `path`, where this process may not write or is on another file system.
  const folder = mkdtempSync(`${dirname(path)}/.`)
  const socket = join(folder, 's')
  try {
    const listening = once(server, 'listening')
    server.listen(socket)
    await listening
    chmodSync(socket, 0o600)
    renameSync(socket, path)
  } catch (failure) {
    server.close()
    throw failure
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/**
 * Removes a socket that nobody listens at, or leaves it, for example where the file system is read-only now: the next
 * process of that name replaces it, and whoever looks for running programs tries again.
 */
export function removeSocket(path: string): void {
  try {
    rmSync(path, { force: true })
  } catch {}
}
