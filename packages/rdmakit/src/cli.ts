import { load } from './programs.js'

/** Of nbd-client, under their own names: they are what most machines run. */
const OF_CLIENT = ['attach', 'serve', 'detach', 'upgrade']

const words = process.argv.slice(2)
const [first, ...rest] = words
// Unneeded programs are not loaded: a device whose process restarts waits for the loading.
if (first === 'swap-server') await (await load('swap-server')).main(rest, 'rdmakit swap-server')
else if (first !== undefined && OF_CLIENT.includes(first))
  await (await load('nbd-client')).main(words, 'rdmakit')
else await (await import('./program.js')).main(words)
