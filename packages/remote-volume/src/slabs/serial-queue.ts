/** Runs steps one after the other, in the order in which they were asked for: the engine refills one slab at a time. */
export class SerialQueue {
  #last: Promise<unknown> = Promise.resolve()

  run<Result>(step: () => Promise<Result>): Promise<Result> {
    const result = this.#last.then(step)
    this.#last = result.catch(() => {})
    return result
  }
}
