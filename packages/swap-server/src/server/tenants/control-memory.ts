/**
 * What control connections take of the server's own memory, by tenant: rings, requests that are not answered, and answers
 * that a client does not take. It is apart from the tenant's quota, which is memory that it asked for and gets whole.
 */
export class ControlMemory {
  /** bytes that the connections of one tenant may take together */
  readonly #limit: number
  /** by tenant */
  readonly #taken = new Map<string, { bytes: number; connections: number }>()

  constructor(limit: number) {
    this.#limit = limit
  }

  /** Whether a tenant may have a connection of so many bytes besides those that it has. */
  fits(tenant: string, bytes: number): boolean {
    return (this.#taken.get(tenant)?.bytes ?? 0) + bytes <= this.#limit
  }

  /**
   * A connection of the tenant's takes `after` bytes, where it took `before`; 0: there is none.
   * @returns false: the tenant has more than it may, and this connection more than an even part of what it may
   */
  change(tenant: string, before: number, after: number): boolean {
    const { bytes = 0, connections = 0 } = this.#taken.get(tenant) ?? {}
    const now = {
      bytes: bytes - before + after,
      connections: connections - Number(before > 0) + Number(after > 0),
    }
    if (now.connections === 0) this.#taken.delete(tenant)
    else this.#taken.set(tenant, now)
    return now.bytes <= this.#limit || after * now.connections <= this.#limit
  }
}
