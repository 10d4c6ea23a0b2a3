import type { Handle, ProtectionDomain, VerbsError } from '@rdmakit/verbs'
import type { RingMessage } from '../receiving/message.js'
import type { Place } from '../receiving/place.js'
import type { FrameFields } from '../sending/waiting-frames.js'

/** The connection, as transfers use it. */
export interface TransferHost {
  /** what errors call the connection */
  readonly object: string
  readonly protectionDomain: ProtectionDomain
  /** whether messages are taken away at their release */
  readonly debug: boolean
  /**
   * Sends a frame, behind those that wait for room. Undefined: it is sent, or the connection has ended.
   * @param wanted whether it is still to be sent when there is room for it
   * @param onSent called as soon as the frame is laid out, before anything else can be
   */
  post(
    frame: FrameFields,
    bytes: Uint8Array | Promise<Uint8Array>,
    wanted?: () => boolean,
    onSent?: () => void,
  ): Promise<void> | undefined
  /** {@link post} of bytes that stay as they are for as long as the frame is wanted. */
  borrow(frame: FrameFields, bytes: Uint8Array, wanted: () => boolean): Promise<void> | undefined
  /** Sends a frame if there is room now. */
  send(frame: FrameFields, bytes: Uint8Array): boolean
  /** {@link NativePoller.read} of the connection */
  read(region: Handle, offset: number, address: bigint, key: number, length: number, tag: number): number
  /** A complete request or response of the peer, which came in parts. */
  deliver(type: number, message: RingMessage): void
  /** Keeps the place of a message in the order of all. */
  hold(): Place
  /** Ends the connection. */
  fail(reason: VerbsError): void
  /** Keeps the protection domain, as messages outlive their connection, until the returned function is called. */
  keep(): () => void
}
