import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A file of the operator's in a folder of its own, both gone with it. What is no text and no bytes is written as JSON. */
export class OperatorFile implements Disposable {
  readonly folder = mkdtempSync(join(tmpdir(), 'rdmakit-tenants-'))
  readonly path = join(this.folder, 'file')

  constructor(content: unknown, mode = 0o600) {
    this.write(content)
    chmodSync(this.path, mode)
  }

  write(content: unknown): void {
    const raw = typeof content === 'string' || content instanceof Uint8Array
    writeFileSync(this.path, raw ? content : JSON.stringify(content), { mode: 0o600 })
  }

  [Symbol.dispose](): void {
    rmSync(this.folder, { recursive: true, force: true })
  }
}
