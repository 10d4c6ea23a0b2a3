// libfabric's own ping-pong, another peer of verbs.
import { Child, run } from '../core/child.js'
import { freePort } from '../core/free-port.js'
import { CORES, DEADLINE_MS, type VerbsFigures } from './programs.js'

/** @throws when libfabric has no such provider, or prints no figure */
export async function libfabric(
  provider: 'shm' | 'tcp',
  size: number,
  iterations: number,
): Promise<Pick<VerbsFigures, 'averageUs'>> {
  const port = String(await freePort())
  const endpoint = provider === 'shm' ? 'rdm' : 'msg'
  const what = ['-p', provider, '-e', endpoint, '-I', String(iterations), '-S', String(size)]
  const on = (core: string) => ['-c', core, 'fi_pingpong', ...what]
  await using listening = new Child('taskset', [...on(CORES.listening), '-B', port])
  const connecting = [...on(CORES.connecting), '-P', port, '127.0.0.1']
  // It says nothing when it listens, and a client that comes too early ends.
  const deadline = performance.now() + DEADLINE_MS
  for (;;) {
    try {
      const { stdout } = await run('taskset', connecting, { timeout: DEADLINE_MS })
      // bytes, sent, acknowledged, total, time, MB/sec, microseconds a transfer (half a round trip), Mxfers/sec
      const [, average] = /^\S+\s+\S+\s+=\S+\s+\S+\s+\S+\s+\S+\s+([\d.]+)\s+\S+$/m.exec(stdout) ?? []
      if (average === undefined) throw new Error(`fi_pingpong printed no figures:\n${stdout}`)
      return { averageUs: Number(average) }
    } catch (failure) {
      const early = /Connection refused/.test(String((failure as { stderr?: string }).stderr))
      if (!early || performance.now() > deadline || listening.process.exitCode !== null) throw failure
    }
  }
}
