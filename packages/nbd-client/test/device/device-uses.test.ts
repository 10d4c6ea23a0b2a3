import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { describeUses, swapsOn, usesOf } from '../../src/kernel/device-uses.js'
import { temporaryFolder } from '../helpers/temporary-folder.js'

const SWAPS = 'Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n'
/** The files of a process that uses nothing of ours. */
const OTHERS = {
  'proc/1/mountinfo': '22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n',
  'proc/1/comm': 'init\n',
}

/** Folders that look like the kernel's, of /dev/nbd1 (43:32); links by the text that they lead to. */
function kernelWith(files: Record<string, string>, links: Record<string, string> = {}) {
  const root = temporaryFolder()
  const place = (path: string) => {
    mkdirSync(dirname(join(root, path)), { recursive: true })
    return join(root, path)
  }
  const all = { 'proc/swaps': SWAPS, 'sys/class/block/nbd1/dev': '43:32\n', ...OTHERS, ...files }
  for (const [path, text] of Object.entries(all)) writeFileSync(place(path), text)
  for (const [path, to] of Object.entries({
    'proc/1/fd/0': '/dev/null',
    'proc/1/ns/mnt': 'mnt:[1]',
    ...links,
  }))
    symlinkSync(to, place(path))
  return { sys: join(root, 'sys'), proc: join(root, 'proc') }
}

const usesIn = (folders: ReturnType<typeof kernelWith>) => usesOf('nbd1', [], folders).uses
const partition = { 'sys/class/block/nbd1/nbd1p2/partition': '2\n', 'sys/class/block/nbd1p2/dev': '259:2\n' }

describe('a block device is in use', () => {
  it('not, when nobody has it: partitions alone are no use', () => {
    expect(usesIn(kernelWith({}))).toEqual([])
    expect(usesIn(kernelWith(partition))).toEqual([])
  })

  it('when it is swap, or a partition is', () => {
    const swap = (name: string) => ({ 'proc/swaps': `${SWAPS}/dev/${name}  partition 131068 256 -2\n` })
    expect(usesIn(kernelWith(swap('nbd1')))).toEqual([{ kind: 'swap', on: 'nbd1', by: '' }])
    expect(usesIn(kernelWith({ ...partition, ...swap('nbd1p2') }))).toEqual([
      { kind: 'swap', on: 'nbd1p2', by: '' },
    ])
    expect(usesIn(kernelWith({ ...partition, ...swap('nbd11') }))).toEqual([])
    expect(swapsOn('nbd1', kernelWith({ ...partition, ...swap('nbd1p2') }))).toEqual([
      { name: 'nbd1p2', kibibytes: 256 },
    ])
  })

  it('when it is mounted, or a partition is, in any mount namespace', () => {
    const mounted = (device: string) => ({
      'proc/7/mountinfo': `40 22 ${device} / /srv/a\\040b rw - ext4 /dev/whatever rw\n`,
    })
    const elsewhere = { 'proc/7/ns/mnt': 'mnt:[2]' }
    expect(usesIn(kernelWith(mounted('43:32'), elsewhere))).toEqual([
      { kind: 'mount', on: 'nbd1', by: '/srv/a b' },
    ])
    expect(usesIn(kernelWith({ ...partition, ...mounted('259:2') }, elsewhere))).toEqual([
      { kind: 'mount', on: 'nbd1p2', by: '/srv/a b' },
    ])
    expect(usesIn(kernelWith(mounted('43:3'), elsewhere))).toEqual([])
  })

  it('when a file system over several devices has it', () => {
    const btrfs = { 'proc/1/mountinfo': '40 22 0:44 / /srv rw - btrfs /dev/nbd1 rw\n' }
    expect(usesIn(kernelWith(btrfs))).toEqual([{ kind: 'mount', on: 'nbd1', by: '/srv' }])
  })

  it('when a device of dm or md is on it, or on a partition, and what uses that', () => {
    const stacked = {
      ...partition,
      'sys/class/block/nbd1p2/holders/md0': '',
      'sys/class/block/md0/holders/dm-0': '',
      'sys/class/block/dm-0/dev': '254:0\n',
      'proc/1/mountinfo': '40 22 254:0 / /srv rw - ext4 /dev/mapper/x rw\n',
    }
    expect(usesIn(kernelWith(stacked))).toEqual([
      { kind: 'mount', on: 'dm-0', by: '/srv' },
      { kind: 'holder', on: 'nbd1p2', by: 'md0' },
      { kind: 'holder', on: 'md0', by: 'dm-0' },
    ])
  })

  it('when zram or loop has it for its backing, which makes them no holders', () => {
    const backing = (file: string, path: string) => ({ [`sys/class/block/${file}`]: `${path}\n` })
    expect(usesIn(kernelWith(backing('zram0/backing_dev', '/dev/nbd1')))).toEqual([
      { kind: 'holder', on: 'nbd1', by: 'zram0' },
    ])
    expect(usesIn(kernelWith(backing('loop3/loop/backing_file', '/dev/nbd1')))).toEqual([
      { kind: 'holder', on: 'nbd1', by: 'loop3' },
    ])
    expect(usesIn(kernelWith(backing('zram0/backing_dev', 'none')))).toEqual([])
    expect(usesIn(kernelWith(backing('zram0/backing_dev', '/dev/nbd11')))).toEqual([])
  })

  it('when a process has it open, or a partition, also by a node that is gone', () => {
    const process = { 'proc/7/comm': 'dd\n' }
    const use = (on: string) => [{ kind: 'open', on, by: 'process 7 (dd)' }]
    const by = (path: string, more = {}) =>
      usesIn(kernelWith({ ...process, ...more }, { 'proc/7/fd/3': path }))
    expect(by('/dev/nbd1')).toEqual(use('nbd1'))
    expect(by('/dev/nbd1p2', partition)).toEqual(use('nbd1p2'))
    expect(by('/dev/nbd1 (deleted)')).toEqual(use('nbd1'))
    expect(by('/nbd1')).toEqual(use('nbd1'))
    for (const other of ['/dev/nbd11', '/srv/nbd1', 'socket:[43]']) expect(by(other), other).toEqual([])
  })

  it('but not by a process that is excepted', () => {
    const folders = kernelWith({ 'proc/7/comm': 'nbd-client\n' }, { 'proc/7/fd/3': '/dev/nbd1' })
    expect(usesOf('nbd1', [7], folders)).toEqual({ uses: [], unseen: 0 })
  })

  it('and a process that may not be looked at is counted', () => {
    const folders = kernelWith({ 'proc/7/comm': 'dd\n' })
    // A link that leads to itself cannot be read as a folder, not even by root: ELOOP.
    symlinkSync('fd', join(folders.proc, '7', 'fd'))
    expect(usesOf('nbd1', [], folders)).toEqual({ uses: [], unseen: 1 })
  })
})

it('uses are told in a sentence', () => {
  expect(
    describeUses([
      { kind: 'swap', on: 'nbd0', by: '' },
      { kind: 'mount', on: 'nbd0p1', by: '/srv' },
      { kind: 'holder', on: 'nbd0p2', by: 'dm-0' },
      { kind: 'open', on: 'nbd0', by: 'process 12 (dd)' },
    ]),
  ).toBe('nbd0 is swap; nbd0p1 is mounted on /srv; dm-0 is on nbd0p2; process 12 (dd) has nbd0 open')
})
