import { EXIT, type Impairment, LastResort } from '@rdmakit/operator-kit'

/** Who has the pages of this process's volume if it ends now: nobody yet, the state folder, or the process alone. */
type Holder = 'nobody' | 'state' | 'process'

let holder: Holder = 'nobody'

/**
 * For the whole process. With state, ending the process repairs the failure: the next process takes
 * everything over, and the failed part restarts. Without state, the end would lose the pages, and the lanes
 * serve them without JavaScript's help.
 */
const lastResort = new LastResort((failure, told) => {
  const ends = holder !== 'process'
  if (told || ends)
    process.stderr.write(`nbd-client: control code has failed; ${consequence(holder)}\n${failure.stack}\n`)
  if (ends) process.exit(EXIT.internal)
})

function consequence(of: Holder): string {
  if (of === 'nobody') return 'the process ends'
  if (of === 'state') return 'the process ends, and the next one takes over from its state'
  return 'without state no other process could take over, so this one goes on serving its pages'
}

/** From now on an uncaught failure is reported, and ends the process only if that loses nothing. */
export function installLastResort(): void {
  lastResort.install()
}

/** Pages are here from now on. @param kept they are in a state folder, too */
export function holdsPages(kept: boolean): void {
  holder = kept ? 'state' : 'process'
}

/** The pages are gone, or another process has them. */
export function holdsNoPages(): void {
  holder = 'nobody'
}

/** For the status: the failure in this process. */
export function impairment(): Impairment | undefined {
  return lastResort.impairment
}
