// What a run would leave behind it: temporary folders, of which one is 256 MiB of memory, and processes. However this
// process ends, short of SIGKILL, they go with it.
import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { constants } from 'node:os'
import { join } from 'node:path'

const folders = new Set<string>()
const children = new Set<ChildProcess>()

process.once('exit', () => {
  for (const child of children) child.kill('SIGKILL')
  for (const folder of folders) remove(folder)
})

/** Has these signals end the process, with 128 and their number as a shell would say, by way of its exit. */
export function exitOnSignals(): void {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
    process.once(signal, () => process.exit(128 + constants.signals[signal]))
}

/** Has `child` end when this process does. @returns it */
export function endWithProcess<Child extends ChildProcess>(child: Child): Child {
  children.add(child)
  child.once('exit', () => children.delete(child))
  return child
}

/** A new folder, removed when it is disposed of. */
export class TemporaryFolder implements Disposable {
  readonly path: string

  constructor(parent: string) {
    this.path = mkdtempSync(join(parent, 'rdmakit-bench-'))
    folders.add(this.path)
  }

  [Symbol.dispose](): void {
    folders.delete(this.path)
    remove(this.path)
  }
}

/** A child that was killed a moment ago may still make a last file: rmSync tries again. */
const remove = (folder: string) => rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
