// gRPC as Node has it, over HTTP/2 without TLS: bytes in and bytes out, so that no serializer is timed.
import { Client, credentials, Server, ServerCredentials, type ServiceDefinition } from '@grpc/grpc-js'
import type { RequestTransport } from './endpoint.js'

const PATH = '/bench.Bench/Ask'
const same = (bytes: Buffer) => bytes
const service = {
  ask: {
    path: PATH,
    requestStream: false,
    responseStream: false,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  },
} satisfies ServiceDefinition

/** `at` is `host:port`, port 0 for any, or `unix:/path`. */
export const grpc: RequestTransport = {
  async listen(at, answer) {
    const server = new Server()
    server.addService(service, {
      ask(
        { request }: { request: Buffer },
        reply: (failure: Error | null, value?: Uint8Array) => void,
      ): void {
        reply(null, answer(request, 0, request.length))
      },
    })
    const port = await new Promise<number>((resolve, reject) =>
      server.bindAsync(at, ServerCredentials.createInsecure(), (failure, bound) =>
        failure === null ? resolve(bound) : reject(failure),
      ),
    )
    return { uri: at.startsWith('unix:') ? at : at.replace(/\d+$/, String(port)) }
  },

  async connect(uri) {
    const client = new Client(uri, credentials.createInsecure())
    return {
      request: (message) =>
        new Promise((resolve, reject) =>
          client.makeUnaryRequest(
            PATH,
            same,
            same,
            Buffer.from(message.buffer, message.byteOffset, message.length),
            (failure, value) => (failure === null && value !== undefined ? resolve(value) : reject(failure)),
          ),
        ),
      close: async () => client.close(),
    }
  },
}
