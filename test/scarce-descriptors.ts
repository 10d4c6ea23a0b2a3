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

/** With it the program's process collects garbage: what only waits for that counts as given back. */
export const COLLECTING = '--expose-gc'

/**
 * Runs a program in a process that may open 256 descriptors. What scarce-descriptors.mjs
 * exports is there for it.
 * @param imports specifiers of modules, URLs for instance, by what is imported from them
 * @param program the body of an async function
 * @param values strings that the program has as `values`
 * @returns what the program returns
 */
export async function inSmallProcess<Result = Failure[]>(
  imports: Readonly<Record<string, string>>,
  program: string,
  values: readonly string[],
  ...flags: (typeof COLLECTING)[]
): Promise<Result> {
  const lines = Object.entries(imports).map(([names, from]) => `import ${names} from ${JSON.stringify(from)}`)
  const script = `import { leftOpen, openDescriptors, withFewDescriptors } from ${JSON.stringify(helper)}
    ${lines.join('\n')}
    const [, ...values] = process.argv
    const result = await (async () => { ${program} })()
    process.stdout.write(JSON.stringify(result), () => process.exit(0))`
  const { stdout } = await promisify(execFile)(
    '/bin/sh',
    [
      '-c',
      `ulimit -n ${LIMIT}; exec "$0" "$@"`,
      process.execPath,
      ...flags,
      '--input-type=module',
      '-e',
      script,
      ...values,
    ],
    { timeout: DEADLINE_MS, killSignal: 'SIGKILL' },
  )
  return JSON.parse(stdout) as Result
}
