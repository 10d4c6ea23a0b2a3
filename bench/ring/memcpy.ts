// The cost of a copy of 1 MiB that walks through a ring of 4 MiB and its staging region: Buffer.copy.
//   node memcpy.js MILLISECONDS    prints one line of JSON
const SIZE = 2 ** 20
const FOOTPRINT = 4 * SIZE

const milliseconds = Number(process.argv[2])
const from = Buffer.alloc(FOOTPRINT, 1)
const to = Buffer.alloc(FOOTPRINT, 2)

function copies(count: number): number {
  const begin = performance.now()
  for (let i = 0; i < count; i++) {
    const at = (i * SIZE) % FOOTPRINT
    from.copy(to, at, at, at + SIZE)
  }
  return performance.now() - begin
}

const first = 1000
const count = Math.ceil((milliseconds * first) / copies(first))
const messagesPerSecond = (count / copies(count)) * 1000
console.log(JSON.stringify({ messagesPerSecond, mebibytesPerSecond: messagesPerSecond, count }))
