/** How this process was started. */
export function ownCommand(): readonly string[] {
  return [process.execPath, ...process.execArgv, ...process.argv.slice(1)]
}
