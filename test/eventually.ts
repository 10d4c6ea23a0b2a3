/** Waits for what an event of another thread or process brings about. @throws Error after `timeout` milliseconds */
export async function eventually(condition: () => boolean, timeout = 50_000): Promise<void> {
  const deadline = Date.now() + timeout
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`still not ${condition}`)
    await new Promise((resolve) => setTimeout(resolve, 1))
  }
}
