let last = 0

/** The providers that run on any machine. */
export const PROVIDERS = ['iwarp', 'shm'] as const
export type Provider = (typeof PROVIDERS)[number]

/** An unused address of the provider: any free port, or a path of its own. */
export function listenUri(provider: Provider): string {
  return provider === 'iwarp'
    ? 'iwarp://127.0.0.1:0'
    : `shm:///tmp/rdmakit-ring-${process.pid}-${++last}.sock`
}
