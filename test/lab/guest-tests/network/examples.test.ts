// The examples of the READMEs that need a device of the kernel (the class `lab` of test/docs/blocks.ts): each line as it
// stands but for sizes, over Soft-RoCE, which has the addresses that they name. Those of README.md take a minute in an
// emulated guest; those of the other files, a minute and a half, are for soaks.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { blocksOf, markdownFiles } from '../../../docs/blocks.js'
import { execute } from '../../../docs/execute.js'
import { ADDRESSES, installPackages, type Place } from '../../../docs/workplace.js'
import { LocalShell } from '../../base/local-shell.js'

const files = process.env.RDMAKIT_TIER === 'soak' ? markdownFiles() : ['README.md']
/** A gibibyte of the examples. */
const MEBIBYTES = 16

describe('examples of the READMEs over rxe', () => {
  const shell = new LocalShell()
  const folder = mkdtempSync(join(tmpdir(), 'rdmakit-example-'))
  const place: Place = {
    folder,
    env: { ...process.env, PATH: [join(folder, 'node_modules/.bin'), process.env.PATH].join(delimiter) },
    patienceMs: 120_000,
    echo: false,
    here: (text) => text.replaceAll(/\b(\d+)G\b/g, (_, size) => `${MEBIBYTES * Number(size)}M`),
    launch: async (line) => ['bash', '-ec', line],
  }
  const addresses = (what: 'add' | 'delete') =>
    shell.run(ADDRESSES.map((address) => `ip address ${what} ${address}/32 dev veth`).join(' && '))

  beforeAll(async () => {
    installPackages(folder)
    await addresses('add')
  })

  afterAll(async () => {
    await addresses('delete')
    rmSync(folder, { recursive: true, force: true })
  })

  for (const block of files.flatMap(blocksOf))
    if (block.kind === 'lab')
      test(`${block.file}:${block.line}`, async () => {
        await execute(block, place)
        expect(await shell.run('swapon --show=NAME --noheadings')).toBe('')
      }, 600_000)
})
