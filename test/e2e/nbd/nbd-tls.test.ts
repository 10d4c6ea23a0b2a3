// TLS with the tools of others: certificates, client certificates, shared keys, and who is kept out.
import { randomBytes, randomFillSync } from 'node:crypto'
import { chmodSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { makeCertificates } from '../helpers/certificates.js'
import { must, NBD_CLIENT, Program, run, startServer, temporaryFolder } from '../helpers/processes.js'

const folder = temporaryFolder()
const path = (name: string) => join(folder.path, name)
let certificates: string
let strangers: string
let server: Awaited<ReturnType<typeof startServer>>
const clients: Program[] = []

/** An nbd-client with TLS options, on TCP. @returns host:port */
async function serve(...args: string[]): Promise<string> {
  const client = new Program(
    NBD_CLIENT,
    ['serve', '--server', server.uri, '--size', '16M', '--tcp', '127.0.0.1:0', '--connections', '4', ...args],
    { RDMAKIT_RUN: folder.path },
  )
  clients.push(client)
  const [, , port] = await client.prints(/^ready (nbds?):\/\/127\.0\.0\.1:(\d+)\/$/m)
  return `localhost:${port}`
}

beforeAll(async () => {
  certificates = makeCertificates(path('pki'))
  strangers = makeCertificates(path('strangers'))
  server = await startServer(['--memory', '64M', '--slab-size', '16M'])
})

afterAll(async () => {
  for (const client of clients) await client.stop()
  await server?.program.stop()
  folder[Symbol.dispose]()
})

describe('certificates', () => {
  let address: string
  beforeAll(async () => {
    address = await serve('--tls', 'require', '--tls-certificates', certificates)
  })
  const uri = (folder: string) => `nbds://${address}/?tls-certificates=${folder}`

  it('nbdinfo sees TLS', () => {
    const info = JSON.parse(must('nbdinfo', ['--json', uri(certificates)]))
    expect(info).toMatchObject({ protocol: 'newstyle-fixed', TLS: true, structured: true })
  })

  it('a client that trusts another CA refuses the server', () => {
    const { status, stderr } = run('nbdinfo', [uri(strangers)])
    expect(status).not.toBe(0)
    expect(stderr).toMatch(/certificate/)
  })

  it('plaintext is refused, and told why', () => {
    const { status, stderr } = run('nbdinfo', [`nbd://${address}/`])
    expect(status).not.toBe(0)
    expect(stderr).toMatch(/Operation not supported|TLS/)
    expect(run('nbdinfo', ['--list', `nbd://${address}/`]).status).not.toBe(0)
  })

  it('nbdcopy brings a file there and back over four connections', () => {
    writeFileSync(path('source'), randomFillSync(Buffer.alloc(16 * 2 ** 20)))
    must('nbdcopy', ['--connections=4', path('source'), uri(certificates)])
    must('nbdcopy', ['--connections=4', uri(certificates), path('back')])
    expect(readFileSync(path('back')).equals(readFileSync(path('source')))).toBe(true)
  })

  it('qemu reads it', () => {
    const port = address.split(':')[1]
    const out = must('qemu-io', [
      ...['--object', `tls-creds-x509,id=tls,dir=${certificates},endpoint=client`],
      ...['--image-opts', `driver=nbd,host=localhost,port=${port},tls-creds=tls`],
      ...['-c', 'write -P 0x3c 1M 3M', '-c', 'read -P 0x3c 1M 3M'],
    ])
    expect(out).not.toMatch(/fail|error/i)
  })
})

describe('client certificates', () => {
  let address: string
  beforeAll(async () => {
    address = await serve('--tls', 'require', '--tls-certificates', certificates, '--tls-verify-peer')
  })

  it('lets in a client that the CA has signed', () => {
    const info = JSON.parse(
      must('nbdinfo', ['--json', `nbds://${address}/?tls-certificates=${certificates}`]),
    )
    expect(info).toMatchObject({ TLS: true })
  })

  it('keeps out clients without one, and with one of another CA', () => {
    // Folders that trust the server's CA and hold no client certificate, or a stranger's.
    must('mkdir', [path('none'), path('wrong')])
    for (const name of ['none', 'wrong'])
      must('cp', [join(certificates, 'ca-cert.pem'), join(path(name), 'ca-cert.pem')])
    for (const end of ['cert.pem', 'key.pem'])
      must('cp', [join(strangers, `client-${end}`), join(path('wrong'), `client-${end}`)])
    for (const name of ['none', 'wrong'])
      expect(run('nbdinfo', [`nbds://${address}/?tls-certificates=${path(name)}`]).status, name).not.toBe(0)
  })
})

describe('shared keys', () => {
  let address: string
  beforeAll(async () => {
    writeFileSync(path('keys.psk'), `alice:${randomBytes(32).toString('hex')}\n`)
    chmodSync(path('keys.psk'), 0o600)
    writeFileSync(path('wrong.psk'), `alice:${randomBytes(32).toString('hex')}\n`)
    address = await serve('--tls', 'on', '--tls-psk', path('keys.psk'))
  })
  const uri = (keys: string) => `nbds://alice@${address}/?tls-psk-file=${path(keys)}`

  it('lets in who has the key', () => {
    expect(must('nbdinfo', [uri('keys.psk')])).toMatch(/with TLS/)
  })

  it('keeps out who has another, and goes on', () => {
    expect(run('nbdinfo', [uri('wrong.psk')]).status).not.toBe(0)
    must('nbdinfo', [uri('keys.psk')])
  })

  it('with --tls=on serves plaintext too', () => {
    expect(must('nbdinfo', [`nbd://${address}/`])).toMatch(/without TLS/)
  })
})

describe('what is wrong with the options', () => {
  const serveWith = (...args: string[]) =>
    run(process.execPath, [
      ...[NBD_CLIENT, 'serve', '--server', server.uri, '--size', '16M', '--tcp', '127.0.0.1:0'],
      ...args,
    ])
  beforeAll(() => {
    writeFileSync(path('open.psk'), `alice:${randomBytes(32).toString('hex')}\n`)
    chmodSync(path('open.psk'), 0o644)
    must('cp', ['-r', certificates, path('open')])
    chmodSync(join(path('open'), 'server-key.pem'), 0o644)
    must('cp', ['-r', certificates, path('written')])
    chmodSync(join(path('written'), 'ca-cert.pem'), 0o664)
  })
  it.each([
    [64, 'an unknown mode', ['--tls', 'maybe'], /off, on, require/],
    [64, 'no credentials', ['--tls', 'require'], /--tls-certificates.*--tls-psk/],
    [64, 'credentials without TLS', ['--tls-psk', 'x'], /--tls=on/],
    [
      78,
      'a missing folder',
      ['--tls', 'on', '--tls-certificates', '/nonexistent'],
      /server-cert\.pem: there is no such file/,
    ],
    [
      78,
      'keys that others can read',
      ['--tls', 'on', '--tls-psk', path('open.psk')],
      /--tls-psk \S+ is open to others \(mode 644\); run chmod 600/,
    ],
    [
      78,
      'a private key that others can read',
      ['--tls', 'on', '--tls-certificates', path('open')],
      /server-key\.pem is open to others \(mode 644\); run chmod 600/,
    ],
    [
      78,
      'an authority that others can write',
      ['--tls', 'on', '--tls-certificates', path('written'), '--tls-verify-peer'],
      /ca-cert\.pem can be written by others \(mode 664\); run chmod go-w/,
    ],
    [
      78,
      'a missing file',
      ['--tls', 'on', '--tls-psk', '/nonexistent'],
      /--tls-psk \/nonexistent: there is no such file/,
    ],
  ])('ends with %i for %s', (expected, _, args, pattern) => {
    const { status, stderr } = serveWith(...args)
    expect(stderr.trimEnd().split('\n').at(-1)).toMatch(pattern)
    expect(status).toBe(expected)
  })
})
