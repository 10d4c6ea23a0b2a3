import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { StateFolder } from '../../src/upgrade/state-folder.js'

it.each([0o710, 0o720, 0o740, 0o701, 0o702, 0o704])(
  'a state folder of mode %o is refused: any right of others is too much',
  (mode) => {
    const path = mkdtempSync(join(tmpdir(), 'nbd-mode-'))
    onTestFinished(() => rmSync(path, { recursive: true, force: true }))
    chmodSync(path, mode)
    expect(() => StateFolder.open(path)).toThrow(/mode 0700/)
  },
)
