// The format of a publication: the length of the topic, one byte; the topic; the text. Both are UTF-8.

export interface Publication {
  readonly topic: string
  readonly text: string
}

export const MOST_TOPIC_BYTES = 255

/** @throws RangeError for a topic that is empty or too long */
export function encode({ topic, text }: Publication): Buffer {
  const length = Buffer.byteLength(topic)
  if (length < 1 || length > MOST_TOPIC_BYTES)
    throw new RangeError(`a topic has 1 to ${MOST_TOPIC_BYTES} bytes`)
  return Buffer.concat([Buffer.from([length]), Buffer.from(topic), Buffer.from(text)])
}

/** Just the topic, which is all that the hub needs. Undefined when there is none: the peer broke the form. */
export function topicOf(bytes: Uint8Array): string | undefined {
  const length = bytes[0] ?? 0
  if (length === 0 || bytes.length < 1 + length) return undefined
  // A copy: they may lie in a ring, where the peer can write while they are decoded.
  return Buffer.from(bytes.subarray(1, 1 + length)).toString()
}

/** @param bytes that do not change meanwhile */
export function decode(bytes: Uint8Array): Publication | undefined {
  const topic = topicOf(bytes)
  if (topic === undefined) return undefined
  const at = 1 + (bytes[0] as number)
  return {
    topic,
    text: Buffer.from(bytes.buffer, bytes.byteOffset + at, bytes.length - at).toString(),
  }
}
