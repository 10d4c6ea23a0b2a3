// A test as a mutation names it: what runs it, what has to be built before, and which tier runs it anyway.
//
//   native asan iwarp_wire                        test/native/iwarp/wire_stress.cc, in one configuration
//   unit packages/operator-kit/test/size.test.ts   vitest, project `tests` or `units`
//   iwarp packages/verbs/test/conformance/…       vitest, the conformance suite on a provider; or shm
//   fuzz nbd_handshake                            the seeds of test/fuzz/corpus, and ten seconds
//   lab drivers                                   an argument of npm run lab
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

/**
 * @typedef {object} NamedTest
 * @property {string} name as the mutation has it
 * @property {string} tier the command that runs it when nothing is mutated
 * @property {string[]} run the command that runs it alone
 * @property {string[][]} build what makes its programs from the sources of now, in this order
 * @property {string[]} files of the checkout: where it is written
 */

/** Addons, TypeScript and the two programs: each step costs little when nothing has changed. */
const BUILD = ['node', 'scripts/build.mjs']
const NATIVE = ['bash', 'scripts/native.sh']
const CONFIGURATIONS = ['plain', 'asan', 'tsan']
/** vitest's projects, by the first word */
const PROJECTS = { unit: ['tests', 'units'], iwarp: ['iwarp'], shm: ['shm'] }

/** The path of `file` in `folder`, or in a folder of it; undefined: it is in neither. */
function below(top, folder, file) {
  const folders = readdirSync(join(top, folder), { withFileTypes: true }).filter((each) => each.isDirectory())
  const paths = [folder, ...folders.map((each) => join(folder, each.name))].map((each) => join(each, file))
  return paths.find((path) => existsSync(join(top, path)))
}

/**
 * @param {string} name
 * @param {string} top the checkout
 * @returns {NamedTest}
 * @throws {Error} there is no such test
 */
export function namedTest(name, top) {
  const [kind, ...rest] = name.split(' ')
  const missing = () => new Error(`there is no test "${name}"`)
  if (kind === 'native') {
    const [configuration, test] = rest
    if (!CONFIGURATIONS.includes(configuration) || test === undefined) throw missing()
    const [, folder, file] = /^([a-z]+)_(\w+)$/.exec(test) ?? []
    const source = below(top, `test/native/${folder}`, `${file}_stress.cc`)
    if (source === undefined) throw missing()
    const headers = readdirSync(join(top, dirname(source))).filter((each) => each.endsWith('.h'))
    return {
      name,
      tier: '.ci/run',
      // A test is chosen by what its name contains: this is the whole name.
      run: [...NATIVE, configuration, `^${test}$`],
      build: [
        ...(configuration === 'plain' ? [BUILD] : []),
        [...NATIVE, 'program', configuration, `build_${test}`],
      ],
      files: [source, ...headers.map((each) => join(dirname(source), each))],
    }
  }
  if (kind === 'fuzz') {
    const source = below(top, 'test/fuzz', `${rest[0]}_fuzz.cc`)
    if (source === undefined) throw missing()
    return {
      name,
      tier: '.ci/run',
      run: ['bash', 'scripts/fuzz.sh', '10', rest[0]],
      build: [BUILD, [...NATIVE, 'program', 'asan', 'fuzz_targets']],
      files: [source],
    }
  }
  if (kind === 'lab' && rest.length > 0)
    return { name, tier: 'npm test', run: ['bash', 'scripts/lab.sh', ...rest], build: [BUILD], files: [] }
  const projects = PROJECTS[kind]
  const [file] = rest
  if (projects === undefined || file === undefined || !existsSync(join(top, file))) throw missing()
  if ((kind === 'unit') === file.includes('/conformance/')) throw missing()
  return {
    name,
    tier: 'npm test',
    run: [
      ...['node_modules/.bin/vitest', 'run', '--bail', '1', file],
      ...projects.flatMap((project) => ['--project', project]),
    ],
    build: [BUILD],
    files: [file],
  }
}

/** What the test's files say now, for a digest. */
export function textOf({ name, files }, top) {
  return [name, ...files.map((file) => readFileSync(join(top, file), 'utf8'))].join('\0')
}
