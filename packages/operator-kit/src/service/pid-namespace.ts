import { readlinkSync } from 'node:fs'

/** Header of a control socket's answers: the PID namespace in which its process has its number (pid_namespaces(7)). */
export const PID_NAMESPACE = 'rdmakit-pid-namespace'

/** Of this process; undefined where there is no /proc. */
export function pidNamespace(): string | undefined {
  try {
    return readlinkSync('/proc/self/ns/pid')
  } catch {
    return undefined
  }
}

/**
 * Whether a number from a process of that namespace may name another process here. One that does not say where it is,
 * as those of versions before, is believed to be here.
 */
export function isElsewhere(namespace: string | undefined): boolean {
  const own = pidNamespace()
  return namespace !== undefined && own !== undefined && namespace !== own
}
