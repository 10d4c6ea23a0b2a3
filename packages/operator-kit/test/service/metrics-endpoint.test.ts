import { once } from 'node:events'
import { connect } from 'node:net'
import { Gauge, Registry } from 'prom-client'
import { expect, it, onTestFinished, vi } from 'vitest'
import { MetricsEndpoint } from '../../src/service/metrics-endpoint.js'

const REQUEST = 'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'

it('ends a client that does not receive its answer, which would hold one of the few connections for good', async () => {
  const registry = new Registry()
  // More than the buffers of both sockets have room for.
  new Gauge({ name: 'metric', help: 'x'.repeat(2 ** 24), registers: [registry] })
  const endpoint = await MetricsEndpoint.open(registry, '0', 100)
  onTestFinished(() => endpoint.close())
  const socket = connect(Number(new URL(endpoint.uri).port), '127.0.0.1').pause()
  onTestFinished(() => void socket.destroy())
  await once(socket, 'connect')
  socket.write(REQUEST)
  // Nothing is read, so that only a write tells that the other end has gone. Between requests this is none.
  const failure = await new Promise<NodeJS.ErrnoException>((resolve) => {
    socket.on('error', resolve)
    const write = () => socket.write('\r\n', (failed) => failed || setImmediate(write))
    write()
  })
  expect(failure.code).toMatch(/^(EPIPE|ECONNRESET)$/)
})

it('makes one answer for a client that sends many requests at once', async () => {
  const registry = new Registry()
  new Gauge({ name: 'metric', help: 'a metric', registers: [registry] })
  const metrics = vi.spyOn(registry, 'metrics')
  const endpoint = await MetricsEndpoint.open(registry, '0')
  onTestFinished(() => endpoint.close())
  const socket = connect(Number(new URL(endpoint.uri).port), '127.0.0.1')
  socket.write(REQUEST.repeat(1000))
  let text = ''
  for await (const piece of socket.setEncoding('utf8')) text += piece
  expect(text).toMatch(/^HTTP\/1\.1 200 OK\r\n/)
  expect(text.match(/^# HELP metric a metric$/gm)).toHaveLength(1)
  expect(metrics).toHaveBeenCalledTimes(1)
})
