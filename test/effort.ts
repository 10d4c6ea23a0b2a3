/**
 * How often what may be repeated is: `count` times, or RDMAKIT_EFFORT times that where it is set (npm run soak sets
 * it). At least once.
 */
export const effort = (count: number): number => Math.max(1, Math.round(count * scale))

/**
 * How long a test may take that does so: `milliseconds`, longer with more to do, and five times as long where the addons
 * are under ASan. With less to do no machine is faster.
 */
export const patience = (milliseconds: number): number =>
  milliseconds * Math.max(1, scale) * (process.env.RDMAKIT_COLLECT === undefined ? 1 : 5)

const given = Number(process.env.RDMAKIT_EFFORT ?? 1)
const scale = given > 0 ? given : 1
