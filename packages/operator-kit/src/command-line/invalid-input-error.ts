/**
 * What somebody typed, or set, or sent to a control socket cannot be: an option, a size, an address, a place. A program ends
 * with `EXIT.usage` for it, as for each failure with this code.
 */
export class InvalidInputError extends Error {
  /** `InvalidInputError`, as a log prints it */
  override readonly name = 'InvalidInputError'
  /** always `EINVAL` */
  readonly code = 'EINVAL'
}
