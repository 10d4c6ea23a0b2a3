/**
 * How often what may be repeated is: `count` times, or RDMAKIT_EFFORT times that where it is set (npm run soak sets
 * it). At least once.
 */
export const effort = (count: number): number => Math.max(1, Math.round(count * scale))

const given = Number(process.env.RDMAKIT_EFFORT ?? 1)
const scale = given > 0 ? given : 1
