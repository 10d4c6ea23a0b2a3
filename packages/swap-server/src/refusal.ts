/** A request that is refused; `code` (an errno name) and the message, one sentence, go to the client. */
export class Refusal extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message)
  }
}
