import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { StringDecoder } from 'node:string_decoder'
import { top } from './paths.js'
import { type Command, type CommandOptions, RunningProcess, Shell, toArguments } from './shell.js'

/** Runs commands on the machine that this program itself runs on: the host, or from inside a guest. */
export class LocalShell extends Shell {
  override readonly name = 'local'

  override start(command: Command, options: CommandOptions = {}): RunningProcess {
    const [program = 'true', ...rest] = toArguments(command)
    const child = spawn(program, rest, {
      cwd: options.cwd ?? top,
      env: { ...process.env, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    })
    const signal = (name: NodeJS.Signals, wholeGroup: boolean): void => {
      if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
      if (wholeGroup) process.kill(-child.pid, name)
      else child.kill(name)
    }
    const running = new RunningProcess(command, { signal }, options.onOutput)
    for (const stream of ['stdout', 'stderr'] as const) {
      const decoder = new StringDecoder('utf8')
      child[stream].on('data', (bytes: Buffer) => running.receiveOutput(stream, decoder.write(bytes)))
    }
    let drained: NodeJS.Timeout | undefined
    const end = (status: number | null, name: NodeJS.Signals | null): void => {
      clearTimeout(drained)
      running.receiveEnd({ status, signal: name && constants.signals[name] })
    }
    child.on('close', end)
    // A process that went into the background may hold the pipes long after its parent's exit.
    child.on('exit', (status, name) => {
      drained = setTimeout(() => end(status, name), 200)
    })
    child.on('error', (error) => running.receiveEnd(error))
    return running
  }
}
