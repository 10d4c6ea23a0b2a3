export { type RemoteSlab, type SessionLimits, SwapServerError } from './answers.js'
export { type Actor, type AuditEvent, AuditLog } from './audit.js'
export {
  type SessionIdentity,
  type SessionOptions,
  type SessionUse,
  SwapServerSession,
} from './client.js'
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
export type { Holding, HoldOutcome, LendingOptions } from './lending.js'
export { MetricsEndpoint, parseAddress } from './metrics-endpoint.js'
export { checkPlace, checkSocketPlace, describeFileError, makeFolder, ofOption } from './operator-paths.js'
export { LossyLines, outliveReaders, outrunReaders, tellWarnings } from './readers.js'
export { meaningOfRefusal, type RefusedResume } from './refusal.js'
export { scrapedMetrics } from './scraped-metrics.js'
export { ConfigurationError, type Key, readKeyFile } from './secret-file.js'
export { SwapServer, type SwapServerOptions } from './server.js'
export { MOVES_NOTHING, type ServerRequestHandler } from './server-requests.js'
export { notifyMainProcess, notifyReady } from './service-manager.js'
export { settleHeap } from './settle-heap.js'
export { decideSignals, END_SIGNALS, type SignalOptions } from './signals.js'
export { formatSize, parseSize, parseSizeInUnits } from './size.js'
export { type Column, formatDuration, formatTable, right } from './table.js'
export {
  compareTakeOvers,
  INSTANCE_BYTES,
  NO_TAKE_OVER,
  nextTakeOver,
  type TakeOver,
} from './take-over-number.js'
export { type Tenant, type TenantLimits, Tenants, type TenantsChange } from './tenants.js'
export { unreached } from './unreached.js'
export { printStatus, type Shown, type WatchOptions, watchSeconds } from './watch.js'
