// As types.ts, of CommonJS.
import client = require('@rdmakit/nbd-client')
import kit = require('@rdmakit/operator-kit')
import ring = require('@rdmakit/ring-transport')
import server = require('@rdmakit/swap-server')
import verbs = require('@rdmakit/verbs')

const listener: Promise<verbs.Listener> = verbs.Listener.listen('iwarp://127.0.0.1:0', () => {})
console.log(listener, ring.RingServer, server.SwapServer, client.Volume, kit.EXIT)
