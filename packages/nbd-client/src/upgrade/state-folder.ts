import {
  closeSync,
  existsSync,
  fstatSync,
  fsyncSync,
  openSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { EXIT, ExitError, makeFolder } from '@rdmakit/operator-kit'
import { ConfigurationError } from '@rdmakit/swap-server'
import { closeDescriptor, lockFile } from '../kernel/kernel.js'
import { isOwnState } from './default-state-names.js'
import { formatVolume, type KeptVolume, parseVolume } from './volume-json.js'

/** Attempts if others remove the folder meanwhile; each of them does so once. */
const OPENINGS = 100
const LOCK = 'lock'
const VOLUME = 'volume.json'

/** The folder that lets a successor of this process continue with its volume (docs/page-service/restart.md). */
export class StateFolder {
  readonly path: string
  readonly #lock: number
  /** by this process */
  readonly #isNew: boolean

  private constructor(path: string, lock: number, isNew = false) {
    this.path = path
    this.#lock = lock
    this.#isNew = isNew
  }

  /**
   * Makes the folder if it is missing, and locks it.
   * @throws ExitError: another process has it; ConfigurationError: others may look into it
   */
  static open(path: string): StateFolder {
    for (let time = 0; time < OPENINGS; time++) {
      const folder = StateFolder.#open(path)
      if (folder.#isInPlace()) return folder
      // The previous owner removed the folder, and its lock with it, before this process had the lock.
      folder.close()
    }
    throw new ExitError(`${path} is created and removed by other processes again and again`, EXIT.taken)
  }

  static #open(path: string): StateFolder {
    const isNew = !existsSync(path)
    makeFolder(path, '--state')
    const { mode, uid } = statSync(path)
    if ((mode & 0o077) !== 0 || uid !== process.geteuid?.())
      throw new ConfigurationError(
        `--state ${path} holds the secrets of the volume, and must be yours with mode 0700; run chmod 700 ${path}`,
      )
    try {
      return new StateFolder(path, lockFile(join(path, LOCK)), isNew)
    } catch (failure) {
      if ((failure as NodeJS.ErrnoException).code !== 'EBUSY') throw failure
      throw new ExitError(
        `--state ${path} is in use by another nbd-client; give each volume its own folder`,
        EXIT.taken,
      )
    }
  }

  /**
   * One whose lock another process has handed over; it is closed with the folder.
   * @throws ConfigurationError: it is the lock of another folder, and the lock is still the caller's
   */
  static inherit(path: string, lock: number): StateFolder {
    const [given, wanted] = [fstatSync(lock), statSync(join(path, LOCK))]
    if (given.dev !== wanted.dev || given.ino !== wanted.ino)
      throw new ConfigurationError(`--state ${path} is not the folder of the process that hands over`)
    return new StateFolder(path, lock)
  }

  /** The current contents of a folder that another process has locked. @throws as {@link read} */
  static look(path: string): KeptVolume | undefined {
    return readVolume(join(path, VOLUME))
  }

  /** The descriptor of the lock: a process that has it open has the folder. */
  get lock(): number {
    return this.#lock
  }

  get pageMap(): string {
    return join(this.path, 'pages.map')
  }

  get pageChecksums(): string {
    return join(this.path, 'pages.crc')
  }

  get pageLengths(): string {
    return join(this.path, 'pages.lz4')
  }

  get backupMap(): string {
    return join(this.path, 'backup.map')
  }

  get slabMap(): string {
    return join(this.path, 'slabs.map')
  }

  /** @returns undefined when nothing is kept @throws ConfigurationError that names the mistake in volume.json */
  read(): KeptVolume | undefined {
    return readVolume(this.#volume)
  }

  /** @returns when volume.json was written, milliseconds since 1970 @throws ENOENT: nothing is kept */
  get written(): number {
    return statSync(this.#volume).mtimeMs
  }

  /**
   * Replaces volume.json atomically: a reader finds the old one or the new one.
   * @throws Error of the file system: it is the old one still
   */
  write(volume: KeptVolume): void {
    const temporary = `${this.#volume}.new`
    // A file of that name was left behind; and what a link leads to is not written to.
    rmSync(temporary, { force: true })
    const file = openSync(temporary, 'wx', 0o600)
    try {
      // All of it: one write(2) puts what fits on a file system that is nearly full.
      writeFileSync(file, formatVolume(volume))
      fsyncSync(file)
    } catch (failure) {
      rmSync(temporary, { force: true })
      throw failure
    } finally {
      closeSync(file)
    }
    renameSync(temporary, this.#volume)
    const folder = openSync(this.path, 'r')
    try {
      fsyncSync(folder)
    } finally {
      closeSync(folder)
    }
  }

  /** Nothing is kept any more: volume.json goes first, for without it the maps mean nothing. */
  clear(): void {
    const maps = [this.slabMap, this.pageChecksums, this.pageLengths, this.backupMap, this.pageMap]
    for (const file of [this.#volume, ...maps])
      for (const name of [file, `${file}.new`]) rmSync(name, { force: true })
  }

  /**
   * The device is gone: no state is kept any more, and a folder that no command line named is removed with it. It
   * must still be closed.
   */
  forget(): void {
    this.clear()
    if (isOwnState(this.path)) this.#remove()
  }

  /** Nothing came to be that could be kept: a folder that was made for it goes as well. It is still to be closed. */
  abandon(): void {
    this.clear()
    if (this.#isNew || isOwnState(this.path)) this.#remove()
  }

  #remove(): void {
    rmSync(join(this.path, LOCK), { force: true })
    try {
      rmdirSync(this.path)
    } catch {
      // The folder has contents that are no state.
    }
  }

  /**
   * This process writes pages without checksums, or a backup, so the next one must not believe those that there are. To be
   * called when it has the volume, and before anybody writes: a start that fails must leave them to the next.
   */
  forgetUnused(options: { readonly checksums: boolean; readonly backup: unknown }): void {
    if (!options.checksums) rmSync(this.pageChecksums, { force: true })
    if (options.backup === undefined) rmSync(this.backupMap, { force: true })
  }

  /** Unlocks it. */
  close(): void {
    closeDescriptor(this.#lock)
  }

  /** The locked file is the one that the next process will lock. */
  #isInPlace(): boolean {
    const there = statSync(join(this.path, LOCK), { throwIfNoEntry: false })
    const { dev, ino } = fstatSync(this.#lock)
    return there?.dev === dev && there.ino === ino
  }

  get #volume(): string {
    return join(this.path, VOLUME)
  }
}

function readVolume(file: string): KeptVolume | undefined {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (failure) {
    if ((failure as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw failure
  }
  try {
    return parseVolume(text)
  } catch (failure) {
    throw new ConfigurationError(
      `${file} cannot be used: ${(failure as Error).message}; if no device depends on it, remove the folder's files`,
    )
  }
}
