/**
 * Lets this process outlive whoever reads what it prints, tee(1) say: what is printed then is lost, and nothing else,
 * be it pages that other machines lend or borrow.
 */
export function outliveReaders(): void {
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
}
