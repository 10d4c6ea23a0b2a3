import { scriptedSwap } from './swap-path.js'

/** The kernel's NVMe-oF target (nvmet) on its ramdisk (brd), and the kernel's client. */
export const nvmeRdmaSwap = scriptedSwap({ name: 'NVMe-oF over RDMA' }, 'nvmf-swap.sh', 'rdma')
export const nvmeTcpSwap = scriptedSwap({ name: 'NVMe-oF over TCP' }, 'nvmf-swap.sh', 'tcp')
