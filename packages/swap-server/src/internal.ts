/**
 * What the programs of rdmakit share (command lines, exit statuses, control sockets, logs that nobody reads) and nobody else
 * may rely on: it changes without notice.
 *
 * @internal
 */
export {
  addHelp,
  type HelpNotes,
  lineOf,
  ProgramCommand,
  parsedBy,
  programCommand,
  runCommandLine,
  secondsFrom,
  wholeFrom,
} from './command-line.js'
export {
  type ControlRoutes,
  ControlSocket,
  callControlSocket,
  checkRuntimeDirectory,
  missSilent,
  openRuntimeDirectory,
  type RunningProgram,
  runningPrograms,
  runtimeDirectory,
  type SilentProgram,
} from './control-socket.js'
export { EXIT, ExitError, exitStatusOf } from './exit-status.js'
export { describeImpairment, type Impairment, LastResort } from './last-resort.js'
export { MetricsEndpoint, parseAddress } from './metrics-endpoint.js'
export { checkPlace, checkSocketPlace, describeFileError, makeFolder, ofOption } from './operator-paths.js'
export { LossyLines, outliveReaders, outrunReaders, tellWarnings } from './readers.js'
export { scrapedMetrics } from './scraped-metrics.js'
export { notifyMainProcess, notifyReady } from './service-manager.js'
export { settleHeap } from './settle-heap.js'
export { decideSignals, END_SIGNALS, type SignalOptions } from './signals.js'
export { formatSize, parseSize, parseSizeInUnits } from './size.js'
export { type Column, formatDuration, formatTable, right } from './table.js'
export { unreached } from './unreached.js'
export { printStatus, type Shown, type WatchOptions, watchSeconds } from './watch.js'
