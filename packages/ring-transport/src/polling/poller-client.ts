import type { CallbackScope } from '@rdmakit/verbs/internal'

/** @internal what a poller tells of one connection; `type` is one of {@link TYPE} */
export interface FrameSink {
  /** the scope in which its frames are delivered */
  readonly scope: CallbackScope
  /** data is taken by who drains, and told in the context of that call */
  readonly isDrained: boolean
  frame(
    type: number,
    offset: number,
    length: number,
    end: number,
    correlation: number,
    immediate: number,
  ): void
}

/** @internal what posts at the end of a drain or a turn */
export interface Flushable {
  isListed: boolean
  flush(): void
}
