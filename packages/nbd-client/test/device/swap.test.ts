import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { beginSwapOff, isSwap, LateError, reasonOf, runTool } from '../../src/kernel/swap.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const table = (...lines: string[]) =>
  ['Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority', ...lines, ''].join('\n')
const partition = (path: string) => `${path.padEnd(40)}partition\t131068\t\t256\t\t10`

describe('a device is swap', () => {
  it('by the path at which swapon found it', () => {
    expect(isSwap('/dev/nbd1', table(partition('/dev/sda2'), partition('/dev/nbd1')))).toBe(true)
  })

  it('when the mount namespace in which swapon found it is gone', () => {
    expect(isSwap('/dev/nbd0', table(partition('/nbd0')))).toBe(true)
  })

  it('when its node was removed and made anew', () => {
    expect(isSwap('/dev/nbd0', table(partition('/dev/nbd0\\040(deleted)')))).toBe(true)
  })

  it('but not when one with a longer name is, a file of its name, or nothing', () => {
    expect(isSwap('/dev/nbd1', table(partition('/dev/nbd10'), partition('/dev/xnbd1')))).toBe(false)
    expect(isSwap('/dev/nbd1', table(partition('/srv/nbd1').replace('partition', 'file\t')))).toBe(false)
    expect(isSwap('/dev/nbd1', table())).toBe(false)
  })
})

describe('a tool of the system', () => {
  afterEach(() => {
    vi.unstubAllEnvs()
  })

  /** In the place of swapoff. */
  const swapoffIs = (script: string) => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'swapoff'), `#!/bin/sh\n${script}\n`, { mode: 0o700 })
    vi.stubEnv('PATH', `${folder}:${process.env.PATH}`)
    return folder
  }
  const swapoff = (timeout = 50_000) => runTool('swapoff', ['/dev/nbd1'], timeout)

  it('that does not end is not waited for beyond its time, as when the kernel holds it', async () => {
    // A process that has its output open outlives it, so its end is not visible.
    const folder = swapoffIs('sleep 600 & echo $! >"$(dirname "$0")/pid"; wait')
    await expect(swapoff(2000)).rejects.toThrow(new LateError('swapoff /dev/nbd1 has not finished after 2 s'))
    const pid = Number(readFileSync(join(folder, 'pid'), 'utf8'))
    // 0 would be this process and its group.
    expect(pid, 'its script had no time').toBeGreaterThan(0)
    process.kill(pid, 'SIGKILL')
  })

  it('that fails says why, in its own words if it has some', async () => {
    swapoffIs('echo "swapoff: /dev/nbd1: swapoff failed: Cannot allocate memory" >&2; exit 4')
    await expect(swapoff()).rejects.toThrow(/failed: swapoff: .*: Cannot allocate memory$/)
  })

  it('that is killed, as for lack of memory, or fails without a word, is told of all the same', async () => {
    swapoffIs('kill -KILL $$')
    await expect(swapoff()).rejects.toThrow(/failed: ended by SIGKILL/)
    swapoffIs('exit 7')
    await expect(swapoff()).rejects.toThrow(/failed: status 7, without a message$/)
    expect(reasonOf({ message: 'spawn EAGAIN', code: 'EAGAIN' }, '')).toBe('spawn EAGAIN')
  })

  describe('swapoff of a device that is about to go', () => {
    /** @param entries of the kernel's list */
    const begin = async (timeout: number, ...entries: string[]) => {
      const swaps = join(temporaryFolder(), 'swaps')
      writeFileSync(swaps, table(...entries))
      return { swaps, ...(await beginSwapOff('/dev/nbd1', timeout, swaps)) }
    }

    it('is over when it is swap no more', async () => {
      swapoffIs('echo "swapoff: /dev/nbd1: swapoff failed: Invalid argument" >&2; exit 4')
      const { swaps, over } = await begin(50_000, partition('/dev/nbd1'))
      writeFileSync(swaps, table())
      expect(await over).toBeUndefined()
    })

    it('fails with the reason while it is swap', async () => {
      const folder = swapoffIs(`mkdir "$(dirname "$0")/first" 2>/dev/null || {
        echo "swapoff: /dev/nbd1: swapoff failed: Invalid argument" >&2; exit 4
      }
      until [ -e "$(dirname "$0")/go" ]; do sleep 0.05; done
      echo "swapoff: /dev/nbd1: swapoff failed: Cannot allocate memory" >&2; exit 4`)
      const { over } = await begin(5_000, partition('/dev/nbd1'))
      writeFileSync(join(folder, 'go'), '')
      await expect(over).rejects.toThrow(/Cannot allocate memory$/)
    })

    it('fails when another one that was under way does not end in time', async () => {
      swapoffIs('echo "swapoff: /dev/nbd1: swapoff failed: Invalid argument" >&2; exit 4')
      const { over } = await begin(500, partition('/dev/nbd1'))
      await expect(over).rejects.toThrow(new LateError('/dev/nbd1 is still swap after 0.5 s'))
    })
  })

  it('that is missing is named with what to do', async () => {
    vi.stubEnv('PATH', temporaryFolder())
    await expect(swapoff()).rejects.toThrow(/^swapoff is missing; install util-linux/)
  })
})
