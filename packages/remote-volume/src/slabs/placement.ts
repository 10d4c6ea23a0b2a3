/** A source of numbers in [0, 1), as Math.random. */
export type Random = () => number

/**
 * True when `slabs` slabs can have `replicas` replicas each, no two of a slab on one server.
 * @param room free slabs of each server
 */
export function fits(room: readonly number[], slabs: number, replicas: number): boolean {
  // A server takes at most one replica of each slab. That this is enough: fill the roomiest first.
  return room.reduce((sum, free) => sum + Math.min(free, slabs), 0) >= slabs * replicas
}

/**
 * Chooses a server by the power of two choices: of two drawn at random, the one with more room.
 * @param room free slabs of each server
 * @returns its index; undefined when none outside `excluded` has room
 */
export function chooseServer(
  room: readonly number[],
  excluded: ReadonlySet<number>,
  random: Random = Math.random,
): number | undefined {
  const candidates = [...room.keys()].filter((server) => (room[server] ?? 0) > 0 && !excluded.has(server))
  const draw = () => candidates.splice(Math.floor(random() * candidates.length), 1)[0]
  const [first, second] = [draw(), draw()]
  if (first === undefined || second === undefined) return first
  return (room[second] ?? 0) > (room[first] ?? 0) ? second : first
}

/** A server, as far as room on it matters. */
export interface RoomyServer {
  /** free slabs */
  readonly room: number
  /** it has refused a slab although it has room */
  readonly hesitates: boolean
}

/** Chooses by `choose`, which gets the room of each server, among those that do not hesitate, and else among all. */
export function chooseAmong<Chosen>(
  servers: readonly RoomyServer[],
  choose: (room: readonly number[]) => Chosen | undefined,
): Chosen | undefined {
  const willing = servers.map(({ hesitates, room }) => (hesitates ? 0 : room))
  return choose(willing) ?? choose(servers.map(({ room }) => room))
}

/**
 * Places `slabs` slabs with `replicas` replicas each. Whatever {@link fits} is placed.
 * @param room free slabs of each server
 * @returns the servers of each slab, all different, the one to read from first
 * @throws RangeError when it does not fit
 */
export function placeSlabs(
  room: readonly number[],
  slabs: number,
  replicas: number,
  random: Random = Math.random,
): number[][] {
  if (!fits(room, slabs, replicas)) throw new RangeError('the servers have too little room')
  const left = [...room]
  const places: number[][] = []
  for (let toCome = slabs - 1; toCome >= 0; toCome--) {
    let place = drawPlace(left, replicas, random)
    if (place === undefined || !fits(without(left, place), toCome, replicas)) place = roomiest(left, replicas)
    for (const server of place) left[server] = (left[server] as number) - 1
    places.push(place)
  }
  return places
}

/**
 * Chooses servers for the replicas of one slab.
 * @param room free slabs of each server
 * @returns as many different servers, the one to read from first; undefined when not so many have room
 */
export function drawPlace(
  room: readonly number[],
  replicas: number,
  random: Random = Math.random,
): number[] | undefined {
  const chosen = new Set<number>()
  while (chosen.size < replicas) {
    const server = chooseServer(room, chosen, random)
    if (server === undefined) return undefined
    chosen.add(server)
  }
  return [...chosen]
}

function roomiest(room: readonly number[], count: number): number[] {
  return [...room.keys()].sort((a, b) => (room[b] as number) - (room[a] as number)).slice(0, count)
}

function without(room: readonly number[], place: readonly number[]): number[] {
  return room.map((free, server) => (place.includes(server) ? free - 1 : free))
}
