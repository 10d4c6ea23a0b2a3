import { createRequire } from 'node:module'
import { serviceNotifications } from '@rdmakit/operator-kit'

interface Addon {
  /** @returns a descriptor that comes to its end when the manager has read it */
  notifyServiceManager(socket: string, state: string): number
}

/** The programs tell their service manager by way of the addon of verbs, which is loaded when there is something to tell. */
export const { notifyReady, notifyMainProcess, notifyStatus, notifyStopping } = serviceNotifications(
  (socket, state) => {
    const addon = createRequire(import.meta.url)('@rdmakit/verbs/addon') as Addon
    return addon.notifyServiceManager(socket, state)
  },
)
