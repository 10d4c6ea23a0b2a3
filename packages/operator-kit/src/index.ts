/**
 * What the command-line programs of rdmakit have in common: how they read what an operator writes, print, serve a control
 * socket and metrics, tell a service manager, and end. It depends on no other package of rdmakit.
 *
 * @packageDocumentation
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
} from './command-line/command-line.js'
export { EXIT, ExitError, exitStatusOf, type KnowsExitStatus } from './command-line/exit-status.js'
export { InvalidInputError } from './command-line/invalid-input-error.js'
export { formatSize, parseSize, parseSizeInUnits } from './command-line/size.js'
export { printStatus, type Shown, type WatchOptions, watchSeconds } from './command-line/watch.js'
export { exposureOfFolder, exposureOfPlace } from './files/folder-exposure.js'
export { type ReadFile, readOperatorFile } from './files/operator-file.js'
export {
  checkPlace,
  checkSocketPlace,
  describeFileError,
  makeFolder,
  ofOption,
} from './files/operator-paths.js'
export { printable } from './output/printable.js'
export { LossyLines, outliveReaders, outrunReaders, tellWarnings } from './output/readers.js'
export { type Column, formatDuration, formatTable, right } from './output/table.js'
export { describeImpairment, type Impairment, LastResort } from './process/last-resort.js'
export { settleHeap } from './process/settle-heap.js'
export { decideSignals, END_SIGNALS, type SignalOptions } from './process/signals.js'
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
} from './service/control-socket.js'
export { MetricsEndpoint, parseAddress } from './service/metrics-endpoint.js'
export { type AddScraped, type Labelled, scrapedMetrics } from './service/scraped-metrics.js'
export {
  type SendNotification,
  type ServiceNotifications,
  serviceNotifications,
} from './service/service-manager.js'
