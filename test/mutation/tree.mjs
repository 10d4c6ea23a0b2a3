// A copy of the checkout to put faults into: the checkout itself is never touched. It stays from run to run, so that
// a build compiles only what has changed since.
import { spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'

/** How a command ended. @typedef {{ status: number | null, output: string, seconds: number, late: boolean }} Ended */

/** Of what a command prints, characters that are kept: its end says how it ended. */
const KEPT_OUTPUT = 1_000_000
/** From asking a command to end to ending it. */
const GRACE_MS = 5_000

export class Tree {
  /** @type {import('node:child_process').ChildProcess | undefined} */
  #running

  /**
   * @param {string} top the checkout
   * @param {string} folder where the copy is, or gets made
   */
  constructor(top, folder) {
    this.top = top
    this.folder = folder
    this.tree = join(folder, 'tree')
  }

  /** Makes the copy say what the checkout says: what git knows or would take, and node_modules. */
  update() {
    mkdirSync(this.tree, { recursive: true })
    const files = this.#sources()
    const manifest = join(this.folder, 'files.json')
    const before = existsSync(manifest) ? JSON.parse(readFileSync(manifest, 'utf8')) : []
    const now = new Set(files)
    for (const file of before) if (!now.has(file)) rmSync(join(this.tree, file), { force: true })
    for (const file of files) {
      const text = readFileSync(join(this.top, file))
      const copy = join(this.tree, file)
      // An unchanged file keeps its time, so nothing of it is rebuilt.
      if (existsSync(copy) && readFileSync(copy).equals(text)) continue
      mkdirSync(dirname(copy), { recursive: true })
      writeFileSync(copy, text)
      chmodSync(copy, statSync(join(this.top, file)).mode)
    }
    writeFileSync(manifest, JSON.stringify(files))
    this.#linkModules()
  }

  /** Files of the checkout, as git has them or would take them. */
  #sources() {
    const { status, stdout } = spawnSync(
      'git',
      ['ls-files', '-z', '--cached', '--others', '--exclude-standard'],
      { cwd: this.top, encoding: 'utf8', maxBuffer: 1 << 26 },
    )
    if (status !== 0) throw new Error('git ls-files failed')
    const names = [...new Set(stdout.split('\0'))].filter(Boolean)
    return names.filter((name) => lstatSync(join(this.top, name), { throwIfNoEntry: false })?.isFile())
  }

  /** By hard links, and not one link to the folder: a package is found from where it really is. */
  #linkModules() {
    const stamp = '.package-lock.json'
    const [ours, copy] = [this.top, this.tree].map((top) => join(top, 'node_modules'))
    if (
      existsSync(join(copy, stamp)) &&
      readFileSync(join(copy, stamp)).equals(readFileSync(join(ours, stamp)))
    )
      return
    rmSync(copy, { recursive: true, force: true })
    const linked = spawnSync('cp', ['-al', ours, copy]).status === 0
    if (!linked && spawnSync('cp', ['-a', '--reflink=auto', ours, copy]).status !== 0)
      throw new Error(`node_modules cannot be copied to ${this.tree}`)
    // Files of tools there must not be shared.
    for (const cache of readdirSync(copy).filter((name) => name.startsWith('.v') || name === '.cache'))
      rmSync(join(copy, cache), { recursive: true })
  }

  read(file) {
    return readFileSync(join(this.tree, file), 'utf8')
  }

  write(file, text) {
    writeFileSync(join(this.tree, file), text)
  }

  /** Scripts that ask git which files there are find those of the copy. */
  makeRepository() {
    const git = (...words) => spawnSync('git', words, { cwd: this.tree })
    if (!existsSync(join(this.tree, '.git'))) git('init', '-q')
    git('add', '-A')
  }

  /**
   * Runs a command in the copy, in a process group of its own, which is ended when its time is over.
   * @param {string[]} command
   * @param {number} seconds
   * @returns {Promise<Ended>}
   */
  run([program, ...words], seconds) {
    const started = performance.now()
    const child = spawn(program, words, {
      cwd: this.tree,
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, NO_COLOR: '1', FORCE_COLOR: '0' },
    })
    this.#running = child
    let output = ''
    let late = false
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => {
        output = (output + text).slice(-KEPT_OUTPUT)
      })
    const timer = setTimeout(() => {
      late = true
      this.end()
    }, seconds * 1000)
    return new Promise((resolve, reject) => {
      child.on('error', reject)
      child.on('exit', (status) => {
        clearTimeout(timer)
        this.#running = undefined
        const seconds = (performance.now() - started) / 1000
        const over = () => resolve({ status, output, seconds, late })
        child.on('close', over)
        // A process that a test has left behind may hold the pipes for ever.
        setTimeout(over, GRACE_MS)
      })
    })
  }

  /** Ends what runs, with all that it has started. */
  end() {
    const group = this.#running?.pid
    if (group === undefined) return
    const signal = (name) => {
      try {
        process.kill(-group, name)
      } catch {
        // It has ended.
      }
    }
    signal('SIGTERM')
    setTimeout(() => signal('SIGKILL'), GRACE_MS).unref()
  }
}
