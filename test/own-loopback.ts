/**
 * An address of the loopback network (127/8, RFC 1122, section 3.2.1.3) that is this process's of all that run tests: a
 * port there can be listened on again, where at 127.0.0.1 another process may have been given it meanwhile.
 */
export const OWN_LOOPBACK = [
  127,
  1 + ((process.pid >> 14) & 127),
  (process.pid >> 7) & 127,
  1 + (process.pid & 127),
].join('.')
