// ring.mjs as CommonJS, with the other packages beside it: node ring.cjs URI
const assert = require('node:assert')
const { RingConnection, RingServer } = require('@rdmakit/ring-transport')

async function main(uri) {
  const server = await RingServer.listen(uri, {
    onConnection(connection) {
      connection.handle((request) => Buffer.from(`you said ${request.text()}`))
    },
  })
  const connection = await RingConnection.connect(server.uri)
  console.log(Buffer.from(await connection.request(Buffer.from('hello'))).toString())
  await server.close()
}

assert.equal(typeof require('@rdmakit/swap-server').SwapServer, 'function')
assert.equal(typeof require('@rdmakit/nbd-client').Volume, 'function')
assert.equal(typeof require('@rdmakit/ring-transport/metrics').collectRingMetrics, 'function')
main(process.argv[2])
