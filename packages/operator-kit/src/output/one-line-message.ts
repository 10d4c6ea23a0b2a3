/** What a program says of the failure that ends it: one line, whatever it is. */
export function oneLineMessage(failure: unknown): string {
  return (failure instanceof Error ? failure.message : String(failure)).trim().replaceAll(/\s*\n\s*/g, ' ')
}
