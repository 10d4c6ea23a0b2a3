/**
 * What the command-line programs of rdmakit have in common: how they read what an operator writes, print, serve a control
 * socket and metrics, tell a service manager, and end. It depends on no other package of rdmakit.
 *
 * @packageDocumentation
 */
export {
  argumentParser,
  integerInRange,
  pathArgument,
  secondsInRange,
} from './command-line/argument-parsers.js'
export { EXIT, ExitError, exitStatusOf, type KnowsExitStatus } from './command-line/exit-status.js'
export { integerOf } from './command-line/integer-of.js'
export { InvalidInputError } from './command-line/invalid-input-error.js'
export {
  addHelp,
  type HelpNotes,
  ProgramCommand,
  programCommand,
  runCommandLine,
} from './command-line/program-command.js'
export { formatSize, parseSize, parseSizeInUnits } from './command-line/size.js'
export {
  parseWatchInterval,
  printStatus,
  type StatusView,
  type Unreachable,
  type WatchOptions,
} from './command-line/watch.js'
export { exposureOfFile, exposureOfFolder } from './files/folder-exposure.js'
export { type ReadFile, readOperatorFile } from './files/operator-file.js'
export { checkFilePath, checkSocketPath, describeFileError, makeFolder, nameOption } from './files/paths.js'
export { formatDuration } from './output/duration.js'
export { LossyLines } from './output/lossy-lines.js'
export { oneLineMessage } from './output/one-line-message.js'
export { printable } from './output/printable.js'
export { ignoreBrokenPipe, makeStdioNonBlocking, redirectWarnings } from './output/stdio.js'
export { type Column, formatTable, rightAligned } from './output/text-table.js'
export { disableIdleGc } from './process/idle-gc.js'
export { describeImpairment, type Impairment, LastResort } from './process/last-resort.js'
export { handleSignals, type SignalOptions, TERMINATION_SIGNALS } from './process/signals.js'
export { type ControlRoutes, ControlSocket } from './service/control-socket.js'
export { MetricsEndpoint, parseAddress } from './service/metrics-endpoint.js'
export {
  callControlSocket,
  type RunningProgram,
  runningPrograms,
  type SilentProgram,
  silentAsUnreachable,
} from './service/running-programs.js'
export { checkRuntimeDirectory, openRuntimeDirectory, runtimeDirectory } from './service/runtime-directory.js'
export {
  type AddScraped,
  type AddScrapedHistogram,
  type Distribution,
  type Labelled,
  scrapedMetrics,
} from './service/scraped-metrics.js'
export {
  type SendNotification,
  type ServiceNotifications,
  serviceNotifications,
} from './service/service-manager.js'
