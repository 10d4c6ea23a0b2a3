// Messages that travel in parts, and are whole again at the other end.
const source = (name) => `packages/ring-transport/src/${name}.ts`
const unit = (name) => `unit packages/ring-transport/test/${name}.test.ts`

export const mutations = [
  {
    name: 'end-without-a-beginning',
    file: source('sending/waiting-frames'),
    find: 'const whole = frame.begun || bytes.length',
    replace: 'const whole = (frame.begun ||= bytes.length)',
    why: 'A message is given up before its first part found room, and the peer breaks the connection at its end.',
    tests: [unit('sending/waiting-frames')],
  },
  {
    name: 'part-of-any-length',
    file: source('receiving/assembly'),
    find: 'if (length > this.#longest)',
    replace: 'if (length > 2 ** 32)',
    why: 'A peer makes this end allocate as much as a message in parts says of itself.',
    tests: [unit('transfer/transfer-hostile')],
  },
  {
    name: 'message-within-a-message',
    file: source('receiving/assembly'),
    find: 'return this.#coming === undefined ||',
    replace: 'return true ||',
    why: 'A peer sends something within a message in parts, and it is accepted.',
    tests: [unit('transfer/transfer-hostile')],
  },
  {
    name: 'end-too-early',
    file: source('receiving/assembly'),
    find: 'if (coming.arrived + frame.length === coming.length) {',
    replace: 'if (coming.arrived + frame.length <= coming.length) {',
    why: 'A message in parts ends early, and its rest is what was in memory before.',
    tests: [unit('transfer/transfer-hostile')],
  },
  {
    name: 'parts-need-no-memory',
    file: source('receiving/assembly'),
    find: 'this.#giveBack = this.#host.reserve(this.length, () => this.begin())',
    replace: 'this.begin()',
    why: 'Messages in parts that are never received fill the memory of the process.',
    tests: [unit('transfer/transfer-hostile')],
  },
  {
    name: 'requests-in-parts-without-limit',
    file: source('requests/responder'),
    find: 'if (request.isOwn && !this.#allowance.fits(running.cost)) {',
    replace: 'if (request.isOwn && this.#allowance.limit < 0) {',
    why: 'Requests in parts that are not answered fill the memory of the process.',
    tests: [unit('transfer/transfer-hostile')],
  },
  {
    name: 'given-up-in-silence',
    file: source('sending/waiting-frames'),
    find: 'if (!frame.wanted()) return frame.begun === 0 || this.#giveUp()',
    replace: 'if (!frame.wanted()) return true',
    why: 'A message in parts is given up, and what comes behind it is taken for the rest.',
    tests: [unit('transfer/parts')],
  },
  {
    name: 'bytes-taken-away-count-as-sent',
    file: source('sending/waiting-frames'),
    find: 'else if (bytes.length === 0) {',
    replace: 'else if (bytes.length < 0) {',
    why: 'Bytes are transferred to a Worker while they are sent, and the caller hears that the peer has them.',
    tests: [unit('transfer/parts')],
  },
  {
    name: 'memory-counts-beyond-its-message',
    file: source('receiving/inbox'),
    find: `      if (isPlace(entry)) entry.gone()
      if (message !== null)`,
    replace: '      if (message !== null)',
    why: 'Messages in parts come no more once as many have come as there is memory for.',
    tests: [unit('transfer/parts')],
  },
  {
    name: 'memory-handed-out-within-itself',
    file: source('transfer/memory'),
    find: `    if (this.#serving) return
`,
    replace: `    void this.#serving
`,
    why: 'A peer ends the process by thousands of requests in parts that wait for memory.',
    tests: [unit('transfer/transfer-hostile')],
  },
  {
    name: 'pruned-while-they-are-sent',
    file: source('sending/waiting-frames'),
    find: '&& !this.#sending) this.#prune()',
    replace: '&& this.#sending !== undefined) this.#prune()',
    why: 'Answers that wait for room are never sent, because others before them were given up.',
    tests: [unit('sending/waiting-frames')],
  },
  {
    name: 'early-frames-are-kept-for-nobody',
    file: source('receiving/frame-receiver'),
    find: 'if (this.#sink === undefined) this.start(NOBODY)',
    replace: 'if (this.#sink === undefined) void NOBODY',
    why: 'A connection that is given up while it is accepted keeps its ring, if a message had come.',
    tests: [unit('receiving/early-frames')],
  },
  {
    name: 'copy-of-a-buffer-is-a-view',
    file: source('base/own-memory'),
    find: 'return slice.call(memory, offset, offset + length)',
    replace: 'return Reflect.apply(memory.slice ?? slice, memory, [offset, offset + length])',
    why: 'A request in a Buffer that waits is sent with what its caller has put there since.',
    tests: [unit('sending/outbox'), unit('requests/requests')],
  },
]
