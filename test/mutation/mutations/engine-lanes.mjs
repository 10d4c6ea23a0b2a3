export const mutations = [
  {
    name: 'idle-lane-told-in-the-ring',
    file: 'packages/remote-volume/native/lane/lane.cc',
    find: '  idle_.store(true);\n  wake_control_();',
    replace: '  emit(Event::Type::lane_idle, "");',
    why: 'While control is busy a lane tells more than it hears, and gets no socket of the kernel any more.',
    tests: ['native asan engine_doorbell'],
  },
  {
    name: 'lane-spins-on-a-lost-channel',
    file: 'packages/remote-volume/native/lane/lane.cc',
    find: 'error != EAGAIN && error != EINTR)',
    replace: 'error == ENODEV)',
    why: 'A lane whose channel cannot be read takes all of a processor, and its requests wait for ever.',
    tests: ['native asan engine_device_lost'],
  },
  {
    name: 'lane-sleeps-when-it-cannot-arm',
    file: 'packages/remote-volume/native/lane/lane_sleep.h',
    find: 'error != 0)\n      return lose_device(',
    replace: 'error < 0)\n      return lose_device(',
    why: 'The device of a lane is gone, and its requests wait for ever.',
    tests: ['native asan engine_device_lost'],
  },
]
