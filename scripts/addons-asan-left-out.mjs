/** Words of tests that measure or limit a process's memory: ASan takes more of it, and keeps for a while what was freed. */
const MEASURE_MEMORY = [
  'leave nothing behind',
  'neither descriptors nor memory',
  'without growing',
  'limits what its processes see',
  'a volume that is written lives through them',
  'few of its pages are faulted in anew',
  'passes through 2 MiB',
]
/** Words of tests whose processes lack what ASan needs of a system. */
const NO_ASAN = ['a container without /proc']

/** Words of tests that addons-asan.mjs does not run. scripts/checks/left-out.mjs sees that there is one for each. */
export const LEFT_OUT = [...MEASURE_MEMORY, ...NO_ASAN]
