import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { PollerMode } from '../../src/index.js'

/** Messages from one process to another. */
export interface Run {
  readonly uri: string
  readonly messages: number
  /** of both ends' pollers */
  readonly mode: PollerMode
}

const start = (role: string, runs: readonly Run[]) =>
  fork(fileURLToPath(new URL('programs/endurance.mjs', import.meta.url)), [role, JSON.stringify(runs)], {
    execArgv: [],
  })

/** The next thing that the process tells. @throws when it exits instead */
async function tells<Told>(child: ChildProcess): Promise<Told> {
  const gone = once(child, 'exit').then(([code, signal]) => {
    throw new Error(`it exited with ${code ?? signal}`)
  })
  gone.catch(() => {})
  const [told] = await Promise.race([once(child, 'message'), gone])
  return told as Told
}

/** Sends the messages of all runs, one after the other; the other process checks every word. @returns what both counted */
export async function endure(runs: readonly Run[]): Promise<object[]> {
  const receiver = start('receive', runs)
  const receiverGone = once(receiver, 'exit')
  let sender: ChildProcess | undefined
  try {
    const uris = await tells<string[]>(receiver)
    sender = start(
      'send',
      runs.map((run, i) => ({ ...run, uri: uris[i] as string })),
    )
    const senderGone = once(sender, 'exit')
    const counted = await tells<object[]>(sender)
    const exits = (await Promise.all([senderGone, receiverGone])).map(([code]) => code)
    return counted.map((one) => ({ ...one, exits }))
  } finally {
    for (const child of [receiver, sender]) if (child?.exitCode === null) child.kill('SIGKILL')
  }
}

/** What {@link endure} returns of a run of which nothing went wrong. */
export const flawless = (messages: number) => ({ received: messages, wrong: 0, same: true, exits: [0, 0] })
