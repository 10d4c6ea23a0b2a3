// ring.mjs in three worker threads, one after the other and beside the same in the main thread: node worker.mjs URI
import { once } from 'node:events'
import { Worker } from 'node:worker_threads'

for (let i = 0; i < 3; i++) {
  const worker = new Worker(new URL('ring.mjs', import.meta.url), { argv: [process.argv[2]] })
  const [status] = await once(worker, 'exit')
  if (status !== 0) process.exit(status)
}
await import('./ring.mjs')
