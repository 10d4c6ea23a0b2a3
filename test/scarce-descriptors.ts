import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const LIMIT = 256
const DEADLINE_MS = 50_000
const helper = new URL('scarce-descriptors.mjs', import.meta.url).href

/** A failure of what had too few descriptors. */
export interface Failure {
  /** the error's code, if it has one */
  readonly code?: string
  /** descriptors that it left open */
  readonly left: number
}

/**
 * Runs a program in a process that may open 256 descriptors. It imports what it tests, and calls
 * `withFewDescriptors(make, drop)` of scarce-descriptors.mjs as its last expression.
 * @param imports specifier of a module, as a URL, by the names that are imported
 * @returns the failures, one for each number of descriptors that was too small
 */
export async function withFewDescriptors(
  imports: Readonly<Record<string, string>>,
  program: string,
  ...values: readonly string[]
): Promise<Failure[]> {
  const lines = Object.entries(imports).map(([names, from]) => `import ${names} from ${JSON.stringify(from)}`)
  const script = `import { withFewDescriptors } from ${JSON.stringify(helper)}
    ${lines.join('\n')}
    const [, ...values] = process.argv
    const failures = await (async () => { ${program} })()
    process.stdout.write(JSON.stringify(failures), () => process.exit(0))`
  const arguments_ = [
    '-c',
    `ulimit -n ${LIMIT}; exec "$0" "$@"`,
    process.execPath,
    '--input-type=module',
    '-e',
    script,
    ...values,
  ]
  const { stdout } = await promisify(execFile)('/bin/sh', arguments_, {
    timeout: DEADLINE_MS,
    killSignal: 'SIGKILL',
  })
  return JSON.parse(stdout) as Failure[]
}
