// What the tiers consist of, and what each part may take: seconds on two quiet processors of a machine on which nothing
// is installed. docs/testing.md says what is in a part, where its tests are, and how to run one of them.
import { nativeCases, numberIn, vitestCases } from './cases.mjs'

/** @typedef {import('./run.mjs').Part} Part */

/** @type {Part} */
const setUp = {
  name: 'set-up and build',
  command: ['bash', 'scripts/setup.sh', 'build', 'test', 'lab'],
  budget: 170,
  first: true,
}

/** @type {Part} */
const host = {
  name: 'unit, conformance, end to end',
  command: ['bash', 'scripts/unit.sh'],
  budget: 180,
  cases: vitestCases('host.json'),
}

/** @type {Part} */
const otherNodes = {
  name: 'verbs and ring on Node 20.19 and the newest',
  command: ['node', 'scripts/node/on-node.mjs', '--quick', '20.19', 'newest'],
  budget: 40,
}

/** @type {Part} */
const packages = {
  name: 'packages: from tarballs, on empty machines',
  command: ['node', 'scripts/packages/gate.mjs'],
  budget: 60,
  cases: vitestCases('packages.json'),
}

/** @type {Part} */
const drivers = {
  name: 'lab: each driver once',
  command: ['bash', 'scripts/lab.sh', 'drivers'],
  budget: 100,
  cases: vitestCases('lab-drivers.json'),
}

/** @type {Part[]} */
const checks = [
  { name: 'style, types, docs', command: ['bash', 'scripts/check.sh', 'style'], budget: 30 },
  {
    name: 'clang-tidy of what has changed',
    // All of it is a part of a soak.
    command: ['bash', 'scripts/tidy.sh', '--within', '15'],
    budget: 25,
  },
  {
    name: 'native, plain',
    // What sanitizers cannot show: they stand where the counting allocators do, and take memory themselves.
    command: ['bash', 'scripts/native.sh', 'plain', 'allocation', 'shm_many'],
    budget: 30,
    cases: nativeCases('native-plain.xml'),
  },
  {
    name: 'native, ASan and UBSan',
    command: ['bash', 'scripts/native.sh', 'asan'],
    budget: 150,
    cases: nativeCases('native-asan.xml'),
  },
  {
    name: 'native, TSan',
    command: ['bash', 'scripts/native.sh', 'tsan'],
    budget: 130,
    cases: nativeCases('native-tsan.xml'),
  },
  {
    name: 'fuzz: corpus and 10 s each',
    command: ['bash', 'scripts/fuzz.sh', '10'],
    budget: 90,
    cases: numberIn('fuzz.count'),
  },
]

/** @type {Part[]} */
const lab = [
  {
    name: 'lab: kernel, conformance',
    command: ['bash', 'scripts/lab.sh', 'kernel'],
    budget: 620,
    cases: vitestCases('lab-device.json', 'lab-swap.json', 'lab-harness.json'),
  },
  {
    name: 'lab: a fault trial of each front',
    command: ['bash', 'scripts/lab.sh', 'trials'],
    budget: 100,
    cases: () => 2,
  },
]

export const tiers = {
  test: { parts: [setUp, host, drivers], budget: 600 },
  // The drivers' tests are among the lab's: one boot less.
  ci: { parts: [setUp, ...checks, ...lab, host, otherNodes, packages], budget: 1440 },
}
