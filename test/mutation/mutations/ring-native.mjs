const source = (name) => `packages/ring-transport/native/ring/${name}`
const unit = (name) => `unit packages/ring-transport/test/${name}.test.ts`

export const mutations = [
  {
    name: 'ring-credit-for-more-than-was-sent',
    file: source('sender.cc'),
    find: `if (more_units > posted_.load(std::memory_order_acquire) - units ||
      more_notifications`,
    replace: `if (units > posted_.load(std::memory_order_acquire) ||
      more_notifications`,
    why: 'A peer gives credit for what it was never sent, and is written over what it has not read.',
    tests: ['native asan ring_hostile', unit('bad-peer')],
  },
  {
    name: 'ring-full-send-queue-is-not-told',
    file: source('sender.cc'),
    find: '    wished_other_.store(true, std::memory_order_seq_cst);\n    if (!can_post(kMostRequests)) {',
    replace:
      '    wished_other_.store(false, std::memory_order_seq_cst);\n    if (!can_post(kMostRequests)) {',
    why: 'Who waits for a place in the send queue is not told when there is one.',
    tests: ['native asan ring_traffic', unit('connection')],
  },
  {
    name: 'ring-signals-by-requests-only',
    file: source('sender.cc'),
    find: 'if (signal_ || unsignaled_requests_ >= options_.signal_every || unsignaled_units_ >= capacity_ / 4) {',
    replace: 'if (signal_ || unsignaled_requests_ >= options_.signal_every) {',
    why: 'A few large frames fill the staging region, and nothing tells that they have left it.',
    tests: [unit('connection'), 'native asan ring_traffic', unit('properties')],
  },
  {
    name: 'ring-frame-beyond-published',
    file: source('receiver.cc'),
    find: 'if (units > there || units > to_end) return Violation::frame_length;',
    replace: 'if (there == 0 || units > to_end) return Violation::frame_length;',
    why: 'A frame is read that the peer has not published yet.',
    tests: ['native asan ring_hostile', unit('bad-peer')],
  },
  {
    name: 'ring-pad-that-ends-anywhere',
    file: source('receiver.cc'),
    find: '  if (pad && units != to_end) return Violation::pad;\n',
    replace: '',
    why: 'A pad need not end at the end of the ring.',
    tests: [unit('bad-peer'), 'native asan ring_hostile'],
  },
  {
    name: 'ring-publishes-more-than-it-holds',
    file: source('receiver.cc'),
    find: 'if (units == 0 || units > capacity_ - (published_ - reported_)) return Violation::published;',
    replace: 'if (units == 0 || units > capacity_) return Violation::published;',
    why: 'A peer publishes over what has not been read.',
    tests: ['native asan ring_hostile', unit('bad-peer')],
  },
  {
    name: 'ring-credit-for-bytes-only',
    file: source('receiver.cc'),
    find: 'released_ - reported_ >= capacity_ / 2 || notifications_ - reported_notifications_ >= depth_ / 2;',
    replace: 'released_ - reported_ >= capacity_ / 2 || notifications_ - reported_notifications_ > depth_;',
    why: 'Many small messages use up the notifications, and no credit gives them back.',
    tests: ['native asan ring_late_completions'],
  },
  {
    name: 'ring-credit-before-its-receives',
    file: source('receiver.cc'),
    find: '  if (int error = repost(); error != 0) return error;  // claim 2 of wire.h\n',
    replace: '',
    why: 'Credit is given for notifications whose receives are not posted again.',
    tests: ['native asan ring_traffic', unit('connection')],
  },
  {
    name: 'ring-read-beyond-region',
    file: source('reader.cc'),
    find: 'if (length == 0 || length > kMaxRead || offset > region->length || length > region->length - offset)',
    replace: 'if (length == 0 || length > kMaxRead || offset > region->length)',
    why: 'A READ may end behind the memory that it is for.',
    tests: ['native asan ring_read', unit('transfer-memory')],
  },
  {
    name: 'ring-left-while-it-reads',
    file: source('poller.cc'),
    find: 'connection->receiver.outstanding() == 0 && !connection->reader.outstanding() && !more_completions_;',
    replace: 'connection->receiver.outstanding() == 0 && !more_completions_;',
    why: 'A connection counts as gone while a READ still fills memory.',
    tests: ['native asan ring_late_completions'],
  },
  {
    name: 'ring-completion-of-another-generation',
    file: source('poller.cc'),
    find: 'if (connection == nullptr || connection->generation != id.generation) return;',
    replace: 'if (connection == nullptr) return;',
    why: 'A late completion counts for the connection that has the same place now.',
    tests: ['native asan ring_late_completions'],
  },
  {
    name: 'ring-sleeps-over-completions',
    file: source('poller_thread.cc'),
    find: 'if (poll_completions() || (channel_lost_ && wants_turn()) ||',
    replace: 'if ((channel_lost_ && wants_turn()) ||',
    why: 'What completes just before the queue is armed wakes nobody.',
    tests: ['native asan ring_late_completions'],
  },
  {
    name: 'ring-board-drained-meanwhile',
    file: source('board.h'),
    find: `        tail_ = word(kTail).load(std::memory_order_seq_cst);
        if (head_ - tail_ > mask_) return nullptr;`,
    replace: '        return nullptr;',
    why: 'A consumer that has drained the board just before it was told to call is waited for.',
    tests: ['native asan ring_board', 'native tsan ring_board'],
  },
  {
    name: 'ring-shown-after-the-look',
    file: source('board.h'),
    find: `    shown_ = head_;
    word(kHead).store(head_, std::memory_order_seq_cst);`,
    replace: `    shown_ = head_;
    word(kHead).store(head_, std::memory_order_release);`,
    why: 'A consumer goes to sleep just before the poller shows something, and the doorbell does not ring.',
    tests: ['native asan ring_board', 'native tsan ring_board'],
  },
]
