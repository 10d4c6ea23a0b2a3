import type { AttachOptions } from '../attach/attach-options.js'

/** How long the kernel keeps the requests of a device that has no process. */
const DEAD_CONNECTION_SECONDS = 3600

/** Seconds, see {@link KernelDeviceOptions}. */
export interface DeviceTimeouts {
  readonly timeout: number
  readonly deadConnectionTimeout: number
}

/** seconds that the last call to a server that was waited for may take */
const LAST_CALL_S = 10
/** seconds that the file of a backup may take for one system call (packages/remote-volume/native/backup/backup.h) */
const BACKUP_TIMEOUT_S = 10

/**
 * How long a request may take, and how long one waits for the next process.
 * @param kept whether there may be one
 */
export function deviceTimeouts(
  options: Pick<AttachOptions, 'operationTimeout' | 'replicas' | 'reconnect' | 'backup'>,
  kept: boolean,
): DeviceTimeouts {
  if (kept)
    return {
      // Short, because after a crash the kernel repeats requests in flight only then; above the engine's own
      // deadline, or the kernel would give up the sockets of a process that is about to answer.
      timeout: options.operationTimeout + 2,
      deadConnectionTimeout: DEAD_CONNECTION_SECONDS,
    }
  return {
    // Above the engine's own deadlines: the engine says what failed, the kernel only that time is up. A
    // READ may have to try each replica, and then the backup.
    timeout:
      options.operationTimeout * options.replicas +
      6 +
      (options.reconnect ? options.reconnect + LAST_CALL_S : 0) +
      (options.backup === undefined ? 0 : BACKUP_TIMEOUT_S),
    // No process takes this device over: requests that a dead client left in flight fail instead of waiting.
    deadConnectionTimeout: 0,
  }
}
