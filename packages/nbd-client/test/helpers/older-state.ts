import { execFileSync } from 'node:child_process'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const fixtures = fileURLToPath(new URL('../fixtures', import.meta.url))

/** Unpacks what a process of an older version left into `folder`: `state`, and the file `backup`. */
export function unpackState(name: string, folder: string): void {
  execFileSync('tar', ['-xzf', join(fixtures, `${name}.tar.gz`), '--no-same-owner', '-C', folder])
  // A copy has not what the map knows the backup's file by: device, inode and time of birth.
  const file = join(folder, 'state/backup.map')
  const map = readFileSync(file)
  const { dev, ino, birthtimeNs } = statSync(join(folder, 'backup'), { bigint: true })
  map.writeBigUInt64LE(dev, 16)
  map.writeBigUInt64LE(ino, 24)
  map.writeBigUInt64LE(birthtimeNs, 32)
  writeFileSync(file, map)
}
