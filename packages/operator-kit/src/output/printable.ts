/** Keeps what a peer or a file says from writing control characters into logs and onto terminals. */
export function printable(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '?')
}
