/** Frames between the host and a guest's agent; guest/programs/agent.cc is the other end. */
export const Kind = {
  start: 1,
  signal: 2,
  powerOff: 3,
  ready: 16,
  stdout: 17,
  stderr: 18,
  exit: 19,
} as const

export interface Frame {
  process: number
  kind: number
  payload: Buffer
}

const headerSize = 9

export function encodeFrame(process: number, kind: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const header = Buffer.alloc(headerSize)
  header.writeUInt32LE(payload.length, 0)
  header.writeUInt32LE(process, 4)
  header.writeUInt8(kind, 8)
  return Buffer.concat([header, payload])
}

/** Payload of a start frame: cwd \0 {NAME=value \0} \0 {argument \0} */
export function encodeStart(
  cwd: string,
  environment: Readonly<Record<string, string>>,
  command: readonly string[],
): Buffer {
  const variables = Object.entries(environment).map(([name, value]) => `${name}=${value}`)
  return Buffer.from([cwd, ...variables, '', ...command, ''].join('\0'))
}

/** Cuts a byte stream back into frames. */
export class FrameReader {
  #rest: Buffer = Buffer.alloc(0)

  read(bytes: Buffer): Frame[] {
    const frames: Frame[] = []
    this.#rest = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes])
    while (this.#rest.length >= headerSize) {
      const end = headerSize + this.#rest.readUInt32LE(0)
      if (this.#rest.length < end) break
      frames.push({
        process: this.#rest.readUInt32LE(4),
        kind: this.#rest.readUInt8(8),
        payload: this.#rest.subarray(headerSize, end),
      })
      this.#rest = this.#rest.subarray(end)
    }
    return frames
  }
}
