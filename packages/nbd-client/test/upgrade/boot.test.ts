import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { currentBoot, isOfBoot } from '../../src/upgrade/boot.js'

const ID = 'd9131f2e-51ff-49f8-9810-e1f1d5710393'
const OTHER = 'd9131f2e-51ff-49f8-9810-e1f1d5710394'
const BOOT = { id: ID, began: 1_000_000 }

describe('a folder is of this boot', () => {
  it.each([
    ['that is on record', ID, 0, 2_000_000, true],
    ['not of another one that is on record', OTHER, 1_500_000, 2_000_000, false],
    ['when it was written since, without a record', undefined, 1_000_000, 1_000_000, true],
    ['not when it was written before', undefined, 999_999, 2_000_000, false],
    ['not when it was written in the future', undefined, 2_000_001, 2_000_000, false],
  ])('%s', (_, kept, written, now, holds) => {
    expect(isOfBoot(kept, written, BOOT, now)).toBe(holds)
  })
})

describe('the boot', () => {
  let proc: string
  beforeEach(() => {
    proc = mkdtempSync(join(tmpdir(), 'nbd-boot-'))
    mkdirSync(join(proc, 'sys/kernel/random'), { recursive: true })
    writeFileSync(join(proc, 'stat'), 'cpu  1 2 3\nbtime 1795638951\nprocesses 7\n')
    writeFileSync(join(proc, 'sys/kernel/random/boot_id'), `${ID}\n`)
  })
  afterEach(() => rmSync(proc, { recursive: true }))

  it('is what the kernel says', () => {
    expect(currentBoot(proc)).toEqual({ id: ID, began: 1_795_638_951_000 })
    expect(currentBoot()).toEqual(currentBoot())
  })

  it.each([
    ['sys/kernel/random/boot_id', undefined],
    ['sys/kernel/random/boot_id', ''],
    ['stat', undefined],
    ['stat', 'cpu  1 2 3\n'],
  ])('is not guessed when %s is %j', (file, contents) => {
    if (contents === undefined) rmSync(join(proc, file))
    else writeFileSync(join(proc, file), contents)
    expect(() => currentBoot(proc)).toThrow(expect.objectContaining({ status: 71 }))
  })
})
