import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { effort } from '../../../effort.js'
import { LocalShell } from '../../base/local-shell.js'
import type { RunningProcess } from '../../base/shell.js'
import { ensureArrayWalk } from '../../machine/native.js'
import { rdmakitSwap } from '../../swap/remote-swap.js'
import { halfInMemory, pagesOut, untilPagesOut, walkArray } from '../../swap/swap.js'

/** Of the array. */
const mebibytes = Math.min(64, effort(40))

// For soaks: the short trial of nbd (npm run lab -- trials) kills one of two servers under swap too, on hosts of their own.
// Here it is in one guest, to the end of the program.
//
// The kernel's swap is in the memory of two swap-servers, each with all of it, and one of them is killed.
describe.each([
  ['rxe', '10.77.0.1'],
  ['siw', '10.78.0.1'],
])('remote swap with two replicas over %s', (_, address) => {
  const shell = new LocalShell()
  const uris = [`rdma://${address}:7475`, `rdma://${address}:7476`]
  const servers: RunningProcess[] = []
  let client: RunningProcess
  let program: string

  beforeAll(async () => {
    program = await ensureArrayWalk()
    for (const uri of uris) {
      const { serve, listening } = rdmakitSwap(uri, '256M', '256M')
      const server = shell.start(serve)
      servers.push(server)
      await server.waitForLine(listening, 60_000)
    }
    const { attach, attached } = rdmakitSwap(uris[0] as string, '256M', '256M')
    client = shell.start([...(attach as string[]), '--server', uris[1] as string, '--replicas', '2'])
    await client.waitForLine(attached, 120_000)
  }, 300_000)

  afterAll(async () => {
    await client?.stop(120_000)
    await servers[0]?.stop()
  }, 180_000)

  test('a program that swaps ends with every byte right when one server is killed under it', async () => {
    const before = pagesOut()
    const kill = async () => {
      await untilPagesOut(before + 3_000)
      await servers[1]?.stop(15_000, 'SIGKILL')
    }
    const [walk] = await Promise.all([walkArray(shell, { program, ...halfInMemory(mebibytes) }), kill()])
    console.log(`remote swap with two replicas, one killed: ${JSON.stringify(walk)}`)
    expect(walk.wrongPages).toBe(0)
    expect(walk.pagesOut).toBeGreaterThan(6_000)
    expect(walk.pagesIn).toBeGreaterThan(6_000)
    expect(client.stderr).toContain(`lost ${uris[1]}: `)
    expect(client.stderr).toMatch(/: .*nothing of the volume is lost/)
  }, 300_000)
})
