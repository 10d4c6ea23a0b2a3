import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { PROVIDERS } from './helpers/pair.js'

const MESSAGES = 24_000_000
const DEADLINE_MS = 240_000

const start = (...args: string[]) =>
  fork(fileURLToPath(new URL('helpers/soak.mjs', import.meta.url)), args, { execArgv: [] })

/** The next thing that the process tells. @throws when it exits instead */
async function tells(child: ChildProcess): Promise<Record<string, unknown>> {
  const gone = once(child, 'exit').then(([code, signal]) => {
    throw new Error(`it exited with ${code ?? signal}`)
  })
  gone.catch(() => {})
  const [told] = await Promise.race([once(child, 'message'), gone])
  return told as Record<string, unknown>
}

async function soak(uri: string, messages: number, mode: string) {
  const receiver = start('receive', uri, String(messages), mode)
  const receiverGone = once(receiver, 'exit')
  let sender: ChildProcess | undefined
  try {
    const { uri: where } = await tells(receiver)
    sender = start('send', where as string, String(messages), mode)
    const senderGone = once(sender, 'exit')
    const counted = await tells(sender)
    const exits = await Promise.all([senderGone, receiverGone])
    return { ...counted, exits: exits.map(([code]) => code) }
  } finally {
    for (const child of [receiver, sender]) if (child?.exitCode === null) child.kill('SIGKILL')
  }
}

describe.each(PROVIDERS)('over %s', (_, uri) => {
  it(
    '24 million messages between two processes that poll: every word is right',
    async () => {
      expect(await soak(uri(), MESSAGES, 'caller')).toMatchObject({
        received: MESSAGES,
        wrong: 0,
        same: true,
        exits: [0, 0],
      })
    },
    DEADLINE_MS,
  )

  it.each(['adaptive', 'event'])(
    '2 million messages in batches, poller %s: every word is right',
    async (mode) => {
      expect(await soak(uri(), MESSAGES / 12, mode)).toMatchObject({
        received: MESSAGES / 12,
        wrong: 0,
        same: true,
        exits: [0, 0],
      })
    },
    DEADLINE_MS,
  )
})
