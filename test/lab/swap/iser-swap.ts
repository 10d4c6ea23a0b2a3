import { scriptedSwap } from './swap-path.js'

/**
 * The thesis's own design: a ramdisk of the kernel's iSCSI target (LIO, ib_isert), and the kernel's initiator
 * (ib_iser, iscsid). The server needs an RDMA device that the address leads to.
 */
export const iserSwap = scriptedSwap({ name: 'iSER' }, 'iser-swap.sh')
