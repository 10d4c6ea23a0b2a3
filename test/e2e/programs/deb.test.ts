// Files made from the programs' help: completion, manual pages, and the .deb with all of them. The package is built
// once, which takes 4 s, and unpacked into a folder; the rest is 3 s on two cores, of which dpkg takes 0.5 s.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { patience } from '../../effort.js'
import { top } from '../../lab/base/paths.js'
import { must, Program, RDMAKIT, run, startServer, temporaryFolder } from '../helpers/processes.js'

const folder = temporaryFolder()
const inside = (path: string) => join(folder.path, path)
let file: string
let listed: string[]

beforeAll(() => {
  file = must(process.execPath, [join(top, 'scripts/deb.mjs')]).trim()
  must('dpkg-deb', ['--extract', file, folder.path])
  listed = must('dpkg-deb', ['--contents', file])
    .trim()
    .split('\n')
    .map((line) => (/ \.(\/.*?)(?: -> .*)?$/.exec(line) as RegExpExecArray)[1] as string)
}, patience(60_000))

afterAll(() => folder[Symbol.dispose]())

describe('the .deb', () => {
  it("has one program, and no name of Debian's nbd-client", () => {
    const under = (start: string) => listed.filter((path) => path.startsWith(start) && !path.endsWith('/'))
    expect(under('/usr/bin/')).toEqual(['/usr/bin/rdmakit'])
    expect(under('/usr/lib/systemd/')).toEqual([
      '/usr/lib/systemd/system/rdmakit-nbd@.service',
      '/usr/lib/systemd/system/rdmakit-swap-server@.service',
    ])
    for (const path of listed)
      expect(path).toMatch(
        /^\/(usr\/((bin|lib|share)\/)?)?$|\/(rdmakit|systemd|sysusers\.d|man|bash-completion|fish|doc)/,
      )
    expect(under('/etc')).toEqual([])
  })

  it('runs from where it is unpacked, addons and all', async () => {
    using run = temporaryFolder()
    const { program, uri } = await startServer(['--memory', '16M', '--slab-size', '16M'], undefined, run.path)
    await using _ = program
    const script = inside('usr/bin/rdmakit')
    const words = ['serve', '--server', uri, '--size', '16M', '--unix', join(run.path, 'nbd.sock')]
    await using client = new Program(script, words, { RDMAKIT_RUN: run.path })
    await client.prints(/^ready /m)
    expect(await client.stop()).toEqual({ status: 0, signal: null })
  })

  const FORCED = ['--force-script-chrootless', '--force-depends']
  const UNITS = ['rdmakit-nbd@.service', 'rdmakit-swap-server@.service']
  it.each(['lib/systemd/system', 'share/doc/rdmakit/examples/two-hosts/systemd'])(
    'has units that start the program of the package, in %s',
    (place) => {
      for (const name of UNITS) {
        const unit = readFileSync(inside(join('usr', place, name)), 'utf8')
        expect(unit).toMatch(/^ExecStart=\/usr\/bin\/rdmakit (attach|swap-server) /m)
        expect(unit).not.toMatch(/\/usr\/local|\/opt\//)
      }
    },
  )

  // dpkg takes no system but as root.
  it.runIf(process.getuid?.() === 0)(
    'makes the user of its units, and leaves no file when it is removed',
    () => {
      using system = temporaryFolder()
      const read = (path: string) => readFileSync(join(system.path, path), 'utf8')
      const dpkg = (...words: string[]) =>
        // The scripts of the package run on this machine, and are told where the system is.
        must('dpkg', [`--root=${system.path}`, '--log=/dev/null', ...FORCED, ...words])
      for (const folder of ['etc', 'var/lib/dpkg/info', 'var/lib/dpkg/updates'])
        mkdirSync(join(system.path, folder), { recursive: true })
      writeFileSync(join(system.path, 'var/lib/dpkg/status'), '')
      dpkg('--install', file)
      for (const name of UNITS) {
        const [, user = 'root'] = /^User=(.*)$/m.exec(read(join('usr/lib/systemd/system', name))) ?? []
        expect(`root:x:0:0:\n${read('etc/passwd')}`).toMatch(new RegExp(`^${user}:`, 'm'))
      }
      dpkg('--remove', 'rdmakit')
      expect(
        readdirSync(system.path, { recursive: true }).filter((path) => /^usr\/.*rdmakit/.test(String(path))),
      ).toEqual([])
    },
  )
})

describe('manual pages', () => {
  const page = (name: string) =>
    gunzipSync(readFileSync(inside(`usr/share/man/man1/${name}.1.gz`))).toString()

  it('are there for rdmakit and each of its commands', () => {
    const commands = ['attach', 'completion', 'detach', 'serve', 'status', 'swap-server', 'upgrade']
    expect(readdirSync(inside('usr/share/man/man1')).toSorted()).toEqual(
      [...commands.map((command) => `rdmakit-${command}.1.gz`), 'rdmakit.1.gz'].toSorted(),
    )
  })

  it.each(['attach', 'serve', 'swap-server serve', 'swap-server reclaim', 'status'])(
    'have the options, the notes and the examples of the help: %s',
    (command) => {
      const help = run(process.execPath, [RDMAKIT, ...command.split(' '), '--help']).stdout
      const text = page(`rdmakit-${command.split(' ')[0]}`)
      expect(text.replace(/^\.(TH|SH|SS|TP|P|nf|fi|B|BR)\b/gm, '')).not.toMatch(/^\./m)
      const plain = text
        .replaceAll('\\-', '-')
        .replaceAll('\\&', '')
        .replaceAll('\\e', '\\')
        .replaceAll(/\s+/g, ' ')
      const options = [...help.matchAll(/^ {2}(?:-\w, )?(--[a-z-]+)/gm)].map(([, option]) => option as string)
      expect(options).toContain('--help')
      for (const option of options) expect(plain).toContain(option)
      const [, notes] = /--help +print this\n\n([\s\S]*)\n\nExamples:/.exec(help) ?? []
      for (const word of (notes ?? '').replace('Exit status: ', '').split(/\s+/))
        expect(plain).toContain(word)
      const [, examples] = help.split('\nExamples:\n')
      expect(plain).toContain((examples as string).replaceAll(/\s*\\\n\s*|\s+/g, ' ').trim())
    },
  )
})

describe('completion', () => {
  const SCRIPTS = {
    bash: 'usr/share/bash-completion/completions/rdmakit',
    fish: 'usr/share/fish/vendor_completions.d/rdmakit.fish',
  }
  const OFFERED = {
    bash: `
      source ${inside(SCRIPTS.bash)}
      COMP_WORDS=(rdmakit "$@") COMP_CWORD=$#
      _rdmakit
      printf '%s\\n' "\${COMPREPLY[@]}"`,
    fish: `
      source ${inside(SCRIPTS.fish)}
      complete -C "rdmakit $argv"`,
  }
  const shells = Object.keys(SCRIPTS) as (keyof typeof SCRIPTS)[]

  it.each(shells)('for %s is what the program prints', (shell) => {
    expect(must(process.execPath, [RDMAKIT, 'completion', shell])).toBe(
      readFileSync(inside(SCRIPTS[shell]), 'utf8'),
    )
  })

  it.each(shells)('in %s offers commands, options, and the words and files that options take', (shell) => {
    /** What the shell would offer for the last of these words, without what it says of each. */
    const offered = (...words: string[]) =>
      must(shell, shell === 'bash' ? ['-c', OFFERED.bash, 'bash', ...words] : ['-Nc', OFFERED.fish, ...words])
        .split('\n')
        .map((line) => line.replace(/\t.*/, ''))
        .filter((word) => word !== '')
    expect(offered('a')).toEqual(['attach'])
    expect(offered('swap-server', 're')).toEqual(['reclaim'])
    expect(offered('attach', '--sw')).toEqual(['--swap', '--swap-priority'])
    expect(offered('attach', '--swap', '--front', '')).toEqual(['nbd', 'ublk'])
    // Without a word it serves.
    expect(offered('swap-server', '--mem')).toEqual(['--memory'])
    expect(offered('swap-server', '--log-level', 'w')).toEqual(['warn'])
    expect(offered('serve', '--size', '')).toEqual([])
    expect(offered('attach', '--key-file', join(top, 'LIC'))).toEqual([join(top, 'LICENSE')])
  })

  it('in fish says what each is', () => {
    const script = OFFERED.fish.replace('$argv', 'swap-server --memo')
    expect(must('fish', ['-Nc', script])).toMatch(/^--memory\t\w+ .*\n$/)
  })
})
