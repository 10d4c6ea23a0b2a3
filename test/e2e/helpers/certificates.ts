// Certificates for tests, made with openssl(1): a CA, a server and a client that it signed, and a stranger.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { must } from './processes.js'

/** Made in no time; RSA keys take a second each on some machines. */
const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']

const openssl = (...args: string[]) => must('openssl', args)

function authority(folder: string, name: string): void {
  mkdirSync(folder, { recursive: true })
  openssl(
    ...['req', '-x509', ...NEW_KEY, '-days', '2', '-subj', `/CN=${name}`],
    ...['-keyout', join(folder, 'ca-key.pem'), '-out', join(folder, 'ca-cert.pem')],
  )
}

function signed(folder: string, kind: 'server' | 'client'): void {
  const path = (end: string) => join(folder, `${kind}-${end}`)
  openssl(
    ...['req', ...NEW_KEY, '-subj', `/CN=${kind === 'server' ? 'localhost' : 'a client'}`],
    ...['-keyout', path('key.pem'), '-out', path('request.pem')],
  )
  writeFileSync(
    path('extensions'),
    kind === 'server' ? 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' : 'extendedKeyUsage=clientAuth\n',
  )
  openssl(
    ...['x509', '-req', '-days', '2', '-in', path('request.pem'), '-extfile', path('extensions')],
    ...['-CA', join(folder, 'ca-cert.pem'), '-CAkey', join(folder, 'ca-key.pem'), '-CAcreateserial'],
    ...['-out', path('cert.pem')],
  )
}

/** @returns a folder with ca-, server- and client-cert.pem and their keys, as nbdkit and libnbd name them */
export function makeCertificates(folder: string): string {
  authority(folder, 'rdmakit test CA')
  signed(folder, 'server')
  signed(folder, 'client')
  return folder
}
