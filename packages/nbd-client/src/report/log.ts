import { LossyLines } from '@rdmakit/operator-kit'

const lineOf = (text: string) => `nbd-client: ${text}\n`
const log = new LossyLines(
  () => process.stderr,
  (count) => lineOf(`${count} lines were lost: they were not read in time`),
)

/** Lines for people on stderr. Nothing here is on the page path, and nothing waits for who reads them. */
export function say(line: string): void {
  log.write(lineOf(line))
}
