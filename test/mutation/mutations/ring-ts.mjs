const source = (name) => `packages/ring-transport/src/${name}.ts`
const unit = (name) => `unit packages/ring-transport/test/${name}.test.ts`

export const mutations = [
  {
    name: 'backoff-without-end',
    file: source('backoff'),
    find: 'this.#limit = Math.min(this.#max, this.#limit * this.#factor)',
    replace: 'this.#limit = Math.min(this.#max, this.#limit) * this.#factor',
    why: 'Waits between attempts to connect grow beyond their limit.',
    tests: [unit('backoff')],
  },
  {
    name: 'binding-of-one-end',
    file: source('handshake'),
    find: 'for (const bytes of [connect, accept])',
    replace: 'for (const bytes of [connect])',
    why: 'A relay that shows a server the handshake of its client passes for that client.',
    tests: [unit('handshake')],
  },
  {
    name: 'binding-of-padding',
    file: source('handshake'),
    find: 'hash.update(bytes.subarray(0, HEADER + view(bytes).getUint8(7)))',
    replace: 'hash.update(bytes)',
    why: 'On RoCE, which pads with zeros what a connect carries, no client with a key gets a session.',
    tests: [unit('handshake')],
  },
  {
    name: 'text-of-the-ring-itself',
    file: source('message'),
    find: `The payload, copied, then read as UTF-8. @throws UsageError after the release */
  text(): string {
    return DECODER.decode(this.copy())`,
    replace: `The payload, copied, then read as UTF-8. @throws UsageError after the release */
  text(): string {
    return DECODER.decode(this.data)`,
    why: 'A peer that writes while its message is decoded makes the decoder write beyond its end.',
    tests: [unit('rewritten')],
  },
  {
    name: 'text-of-a-view-itself',
    file: source('message'),
    find: `The payload, copied, then read as UTF-8. */
  text(): string {
    return DECODER.decode(this.copy())`,
    replace: `The payload, copied, then read as UTF-8. */
  text(): string {
    return DECODER.decode(this.data)`,
    why: 'The same, of the view that a program gets which polls.',
    tests: [unit('rewritten')],
  },
  {
    name: 'error-of-the-ring-itself',
    file: source('errors'),
    find: 'new TextDecoder().decode(frame.copy().subarray(0, MAX_BYTES))',
    replace: 'new TextDecoder().decode(frame.data.subarray(0, MAX_BYTES))',
    why: 'A peer that writes while its error is decoded makes the decoder write beyond its end.',
    tests: [unit('rewritten')],
  },
  {
    name: 'own-standstill-is-silence',
    file: source('liveness'),
    find: 'const passed = Math.min(now - this.#lookedAt, 2 * this.every)',
    replace: 'const passed = now - this.#lookedAt',
    why: 'Time in which this process stood still counts as silence of its peers.',
    tests: [unit('liveness'), unit('heartbeat')],
  },
  {
    name: 'dead-without-being-asked',
    file: source('liveness'),
    find: 'if (this.#silent >= this.#settings.deadAfter && this.#pinged) {',
    replace: 'if (this.#silent >= this.#settings.deadAfter && (this.#pinged || late > 0)) {',
    why: 'A peer is given up that was never asked for a sign of life.',
    tests: [unit('liveness')],
  },
  {
    name: 'credit-beyond-held-frame',
    file: source('held'),
    find: 'if (frame === undefined || !frame.isReleased) break',
    replace: 'if (frame === undefined || (!frame.isReleased && this.#first === from)) break',
    why: 'Ring memory is given back to the peer behind a frame that somebody still reads.',
    tests: [unit('held'), unit('receiving')],
  },
  {
    name: 'small-overtakes-large',
    file: source('inbox'),
    find: 'if (this.waiting === 0 && this.#subject.observed) {',
    replace: 'if (this.#subject.observed) {',
    why: 'A message is handed out before a large one that was sent first and is under way.',
    tests: [unit('transfer'), unit('receiving')],
  },
  {
    name: 'new-frame-overtakes-waiting',
    file: source('outbox'),
    find: 'if (this.#waiting.length > 0 || this.claimed >= 0) {',
    replace: 'if (this.claimed >= 0) {',
    why: 'A frame goes before those that wait for room.',
    tests: [unit('outbox')],
  },
  {
    name: 'answer-of-another-session',
    file: source('link'),
    find: 'if (peer.session?.id !== chosen.session?.id || peer.session?.epoch !== chosen.session?.epoch)',
    replace: 'if (peer.session === undefined && chosen.session !== undefined)',
    why: 'A client takes a connection for one of its session that the server has opened for another one.',
    tests: [unit('wrong-answer')],
  },
  {
    name: 'ring-of-any-size',
    file: source('link'),
    find: `    if (2 ** peer.log2Capacity > this.#settings.maxPeerCapacity)
`,
    replace: `    if (peer.log2Capacity < 0)
`,
    why: 'A server with a large ring makes its client allocate as much.',
    tests: [unit('wrong-answer')],
  },
  {
    name: 'epoch-twice',
    file: source('sessions'),
    find: 'return latest === undefined || epoch > latest.epoch',
    replace: 'return latest === undefined || epoch >= latest.epoch',
    why: 'Two connections of one epoch of a session are served, and both deliver.',
    tests: [unit('sessions')],
  },
  {
    name: 'offers-without-limit',
    file: 'packages/ring-transport/src/transfer/incoming.ts',
    find: 'if (this.#outstanding.size === MAX_OFFERS)',
    replace: 'if (this.#outstanding.size === 4 * MAX_OFFERS)',
    why: 'A peer may have more offers outstanding than this end has agreed to keep.',
    tests: [unit('transfer-hostile')],
  },
  {
    name: 'read-given-up-under-way',
    file: 'packages/ring-transport/src/transfer/reads.ts',
    find: 'if (job.underWay > 0 || !(job.failed || job.read === job.from.length)) return',
    replace: 'if (!(job.failed || job.read === job.from.length)) return',
    why: 'Who gives a transfer up gets its memory back while READs still fill it.',
    tests: [unit('reads')],
  },
  {
    name: 'number-of-abandoned-request',
    file: source('requests'),
    find: 'while (this.#pending.has(this.last) || this.#abandoned.has(this.last))',
    replace: 'while (this.#pending.has(this.last))',
    why: 'A request gets the number of one that timed out, and takes its late answer for its own.',
    tests: [unit('requests')],
  },
  {
    name: 'handshake-of-any-length',
    file: source('handshake'),
    find: 'if (length > MAX_APPLICATION_DATA || HEADER + length > bytes.length)',
    replace: 'if (length > MAX_APPLICATION_DATA)',
    why: 'A handshake whose application data end before they should is taken.',
    tests: [unit('handshake')],
  },
  {
    name: 'nobody-on-the-way-makes-room',
    file: source('server'),
    find: 'if (this.#places(session) < 1 && !this.#makeRoom())',
    replace: 'if (this.#places(session) < 1 && (this.#closing || true || !this.#makeRoom()))',
    why: 'Connections that are never finished keep all others out.',
    tests: [unit('server')],
  },
]
