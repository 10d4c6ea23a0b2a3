import type { Shell } from './shell.js'

/**
 * `rping`, the RDMA connection manager's own ping: connects, then READs and WRITEs and compares.
 * Server and client may be the same shell. The client's output.
 */
export async function rping(server: Shell, client: Shell, address: string, count = 10): Promise<string> {
  const common = ['-a', address, '-C', String(count), '-v']
  const listening = server.start(['stdbuf', '-oL', 'rping', '-s', '-d', ...common])
  try {
    await listening.waitForLine(/^rdma_listen/, 15_000)
    return await client.run(['rping', '-c', ...common], { deadlineMs: 30_000 })
  } finally {
    await listening.stop()
  }
}
