// Runs command lines of one of our programs, one after the other, each as its `main` does in a process that has just begun:
// what a start loads is loaded once. Told by messages: { words, env }; answers { status, stdout, stderr }.
import { AsyncLocalStorage } from 'node:async_hooks'
import { setMaxListeners } from 'node:events'

const script = process.argv[2]
const begun = { ...process.env }
/** What a command line still does when it has ended is not of the next one. */
const ofCommandLine = new AsyncLocalStorage()
/** Ends what called process.exit(), which does not return. */
const ended = new Error('this command line has ended')

process.exit = (status) => {
  ofCommandLine.getStore()?.end(Number(status ?? process.exitCode ?? 0))
  throw ended
}
for (const name of ['stdout', 'stderr'])
  process[name].write = (text, ...rest) => {
    ofCommandLine.getStore()?.print(name, String(text))
    const written = rest.at(-1)
    if (typeof written === 'function') process.nextTick(written)
    return true
  }

/** @returns what runs the program with these words */
async function program() {
  // Its dist/cli.js runs nothing then.
  Reflect.set(globalThis, Symbol.for('rdmakit'), true)
  if (!script.endsWith('/rdmakit.js')) return (await import(script)).main
  let count = 0
  return (words) => {
    process.argv.splice(2, process.argv.length, ...words)
    return import(`${new URL('../dist/cli.js', `file://${script}`)}?${++count}`)
  }
}

const main = await program()
// Each listens as if the process were its own.
setMaxListeners(0, process, process.stdout, process.stderr)

process.on('message', ({ words, env }) => {
  for (const name of Object.keys(process.env)) delete process.env[name]
  Object.assign(process.env, begun, env)
  process.exitCode = undefined
  const said = { stdout: '', stderr: '' }
  let over = false
  const row = {
    print(name, text) {
      if (!over) said[name] += text
    },
    end(status) {
      if (over) return
      over = true
      process.send({ status, ...said })
    },
  }
  ofCommandLine.run(row, async () => {
    try {
      await main(words)
      row.end(process.exitCode ?? 0)
    } catch (failure) {
      if (failure !== ended) row.print('stderr', `it has thrown ${failure?.stack ?? failure}\n`)
      row.end(-1)
    }
  })
})
process.send('ready')
