// What a program gives a ring: options, numbers and bytes that are none.
const source = (name) => `packages/ring-transport/src/${name}.ts`
const unit = (name) => `unit packages/ring-transport/test/${name}.test.ts`

export const mutations = [
  {
    name: 'no-time-of-its-own-is-none',
    file: source('service/client'),
    find: 'timeout: options.timeout ?? timeout',
    replace: 'timeout, ...options',
    why: 'A call whose options name no time does not have that of its client.',
    tests: [unit('service/service')],
  },
  {
    name: 'immediate-is-looked-at-when-connected',
    file: source('client/client'),
    find: '    checkImmediate(rest.immediate)\n    const current = this.#current',
    replace: '    const current = this.#current',
    why: 'A wrong immediate is a time-out where there is no connection, and misuse where there is one.',
    tests: [unit('client/client-streams')],
  },
  {
    name: 'function-names-no-mode',
    file: source('polling/poller-group'),
    find: "  if (chosen === undefined || typeof chosen === 'string') return Poller.shared(context, chosen)\n",
    replace:
      "  if (choice === undefined || typeof choice === 'string') return Poller.shared(context, choice)\n",
    why: 'A function that names a mode has its program fail in each connect.',
    tests: [unit('server/server')],
  },
  {
    name: 'application-data-of-any-kind',
    file: source('setup/options'),
    find: "copyOfBytes('applicationData', options.applicationData ?? new Uint8Array())",
    replace: "options.applicationData ?? copyOfBytes('', new Uint8Array())",
    why: 'A text as application data arrives as zeros.',
    tests: [unit('setup/limits')],
  },
]
