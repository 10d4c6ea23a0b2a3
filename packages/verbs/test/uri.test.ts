import { describe, expect, it } from 'vitest'
import { formatUri, parseUri, UsageError } from '../src/index.js'

describe('verbs URIs', () => {
  it('names provider, host and port', () => {
    expect(parseUri('rdma://10.0.0.1:7471')).toEqual({ provider: 'ibverbs', host: '10.0.0.1', port: 7471 })
    expect(parseUri('iwarp://localhost:0')).toEqual({ provider: 'iwarp', host: 'localhost', port: 0 })
  })

  it('takes 7471 when no port is named', () => {
    expect(parseUri('rdma://host').port).toBe(7471)
  })

  it('carries IPv6 addresses in brackets, both ways', () => {
    const endpoint = parseUri('iwarp://[::1]:5')
    expect(endpoint).toEqual({ provider: 'iwarp', host: '::1', port: 5 })
    expect(formatUri(endpoint)).toBe('iwarp://[::1]:5')
  })

  it('names a socket for shm, both ways', () => {
    const endpoint = parseUri('shm:///run/rdmakit/a.sock')
    expect(endpoint).toEqual({ provider: 'shm', host: '/run/rdmakit/a.sock', port: 0 })
    expect(formatUri(endpoint)).toBe('shm:///run/rdmakit/a.sock')
  })

  it.each(['shm://', 'shm://relative', 'shm:///', `shm:///${'x'.repeat(107)}`])('refuses %j', (uri) => {
    expect(() => parseUri(uri)).toThrow(/shm:\/\/\/path/)
  })

  it('refuses an unknown scheme and says which are known', () => {
    expect(() => parseUri('tcp://a:1')).toThrow(
      /unknown URI scheme "tcp:\/\/".*rdma:\/\/, iwarp:\/\/, shm:\/\//,
    )
  })

  it.each(['', 'a:1', 'rdma://', 'rdma://a:b', 'rdma://a:1/x', 'rdma://a b:1:2'])(
    'refuses %j with an example',
    (uri) => {
      expect(() => parseUri(uri)).toThrow(UsageError)
    },
  )

  it('refuses a port above 65535', () => {
    expect(() => parseUri('rdma://a:65536')).toThrow(/above 65535/)
  })
})
