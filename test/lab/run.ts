import { Guest } from './guest.js'
import { prepareLab } from './lab-parts.js'
import { walkOverNbdkit } from './nbdkit-swap.js'
import { walkArray, withSwapOn } from './swap.js'
const parts = await prepareLab(console.log)
await using guest = await Guest.boot(parts, { diskMiB: 512 })
console.log('boot', guest.bootSeconds)
const program = parts.arrayWalk, bytes = 256 << 20, limitBytes = 128 << 20
await guest.run('sh test/lab/guest/disk.sh; sh test/lab/guest/nbd.sh; ip link add veth type veth peer name vp; ip addr add 10.77.0.1/24 dev veth; ip link set veth up')
console.log('local', await walkArray(guest, { program, bytes }))
console.log('disk', await withSwapOn(guest, '/dev/vda', () => walkArray(guest, { program, bytes, limitBytes })))
for (let i = 0; i < 2; i++) console.log('nbdkit', await walkOverNbdkit(guest, guest, { program, bytes, limitBytes, address: '10.77.0.1' }))
console.log(await guest.exec('cat /proc/swaps; ps aux | grep -v "\\["; dmesg | tail; cat /sys/kernel/mm/transparent_hugepage/enabled'))
