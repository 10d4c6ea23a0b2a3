const protocol = (name) => `packages/nbd-client/native/protocol/${name}`
const engine = (name) => `packages/nbd-client/native/engine/${name}`
const tls = (name) => `packages/nbd-client/native/tls/${name}`
const e2e = (name) => `unit test/e2e/${name}.test.ts`

export const mutations = [
  {
    name: 'offset-beyond-the-end',
    file: protocol('request.cc'),
    find: 'return request.offset <= size && request.length <= size - request.offset;',
    replace: 'return request.length <= size - request.offset;',
    why: 'A request that begins behind the end of the export is served.',
    tests: ['native asan engine_requests', 'fuzz nbd_transmission'],
  },
  {
    name: 'read-of-any-length',
    file: protocol('request.cc'),
    find: `    case kCmdRead:
      if (request.length > kMaxPayload) return kEinval;
`,
    replace: `    case kCmdRead:
`,
    why: 'A READ of 4 GiB is begun.',
    tests: ['native asan engine_requests', 'native asan nbd_structured', e2e('nbd-conformance')],
  },
  {
    name: 'read-only-export-trimmed',
    file: protocol('request.cc'),
    find: `    case kCmdTrim:
      if (exported.read_only()) return kEperm;
`,
    replace: `    case kCmdTrim:
`,
    why: 'A client discards pages of an export that is read-only.',
    tests: ['native asan nbd_structured', e2e('nbd-conformance')],
  },
  {
    name: 'fast-zero-of-part-of-a-page',
    file: protocol('request.cc'),
    find: 'return request.offset % kGranularity == 0 && request.length % kGranularity == 0;',
    replace: 'return request.offset % kGranularity == 0 || request.length % kGranularity == 0;',
    why: 'A client that asked for fast zeros or none gets slow ones.',
    tests: ['native asan nbd_structured', e2e('nbd-conformance'), 'native asan engine_requests'],
  },
  {
    name: 'options-without-end',
    file: protocol('handshake.cc'),
    find: 'if (++options_ > kMaxOptions) return close("too many options");',
    replace: 'if (++options_ > UINT16_MAX) return close("too many options");',
    why: 'A client negotiates for ever.',
    tests: ['native asan nbd_handshake'],
  },
  {
    name: 'info-without-tls',
    file: protocol('handshake.cc'),
    find: 'if (needs_tls() && option_ != kOptStartTls && option_ != kOptAbort) {',
    replace: 'if (needs_tls() && option_ != kOptStartTls && option_ != kOptAbort && option_ != kOptInfo) {',
    why: 'A server that requires TLS tells of its exports in plaintext.',
    tests: ['native asan nbd_tls', 'native asan nbd_handshake'],
  },
  {
    name: 'negotiated-before-tls',
    file: protocol('handshake_options.cc'),
    find: '  structured_ = false;\n  base_allocation_of_ = chosen_ = nullptr;',
    replace: '  base_allocation_of_ = chosen_ = nullptr;',
    why: 'What somebody in between has negotiated in plaintext counts after STARTTLS (CVE-2021-3716).',
    tests: ['native asan nbd_tls', 'native asan nbd_handshake'],
  },
  {
    name: 'context-of-another-export',
    file: protocol('handshake_options.cc'),
    find: 'terms.base_allocation = structured_ && base_allocation_of_ == chosen_;',
    replace: 'terms.base_allocation = structured_ && base_allocation_of_ != nullptr;',
    why: 'BLOCK_STATUS is answered for an export that the client did not ask for it.',
    tests: ['native asan nbd_structured', 'native asan nbd_handshake'],
  },
  {
    name: 'string-beyond-its-option',
    file: protocol('payload.h'),
    find: 'if (!read(length) || length > left_.size()) return false;',
    replace: 'if (!read(length) || length > left_.size() + sizeof length) return false;',
    why: 'A name may reach four bytes behind the option that it is in.',
    tests: ['native asan nbd_handshake', 'fuzz nbd_handshake'],
  },
  {
    name: 'payload-drained-without-limit',
    file: engine('connection.cc'),
    find: 'if (request.length > kMaxDrainedPayload) {',
    replace: 'if (request.length == UINT32_MAX) {',
    why: 'A WRITE far beyond the limit keeps its lane busy with payload that is thrown away.',
    tests: ['native asan engine_requests', e2e('nbd-hostile')],
  },
  {
    name: 'half-a-request-for-ever',
    file: engine('connection.cc'),
    find: '  } else if (now_ >= input_deadline_) {\n',
    replace: '  } else if (now_ >= input_deadline_ && payload_left_ > 0) {\n',
    why: 'A client that sends a part of a header and no more keeps its lane.',
    tests: ['native asan nbd_structured'],
  },
  {
    name: 'yields-and-reads-on',
    file: engine('connection.cc'),
    find: 'return request > unread ? request - unread : 0;',
    replace: 'return request > unread ? SIZE_MAX : 0;',
    why: 'A lane that gives its connection away takes bytes of requests that are the successor’s.',
    tests: [
      'unit packages/nbd-client/test/hand-over.test.ts',
      'unit packages/nbd-client/test/upgrade.test.ts',
    ],
  },
  {
    name: 'failed-read-looks-well',
    file: engine('connection_reply.cc'),
    find: 'if (slot.replied && !slot.fragments) return drop_later("a READ failed after its reply had begun");',
    replace: 'if (slot.replied && !slot.fragments) return;',
    why: 'The rest of a READ that failed after its reply had begun is whatever was in the memory.',
    tests: ['native asan nbd_leaving'],
  },
  {
    name: 'input-memory-used-again',
    file: engine('input_stream.cc'),
    find: 'if (begin_ == end_ && pins_[chunk_] == 0) {',
    replace: 'if (begin_ == end_) {',
    why: 'The payload of a WRITE that is under way is overwritten by the next request.',
    tests: ['native asan engine_requests'],
  },
  {
    name: 'reserved-lane-is-lost',
    file: engine('acceptor.cc'),
    find: '    if (session->lane != nullptr) session->lane->give_up();\n',
    replace: '',
    why: 'A client that leaves between lane and transmission keeps the lane for ever.',
    tests: ['native asan nbd_leaving'],
  },
  {
    name: 'handshakes-without-limit',
    file: engine('acceptor.cc'),
    find: 'if (under_way < options_.max_handshakes || oldest == nullptr) return;',
    replace: 'if (under_way <= 4 * options_.max_handshakes || oldest == nullptr) return;',
    why: 'Clients that say nothing take more places than there are for handshakes.',
    tests: ['native asan nbd_acceptor'],
  },
  {
    name: 'full-tls-socket-not-waited-for',
    file: tls('pump.cc'),
    find: 'tls_blocked_ = bytes < 0;',
    replace: 'tls_blocked_ = bytes == 0;',
    why: 'Nobody goes on sending when the socket of a TLS client has room again: a lost wake-up.',
    tests: ['native asan nbd_tls', e2e('nbd-tls')],
  },
]
