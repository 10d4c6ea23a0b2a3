export { clearTimeout, performance, queueMicrotask, setImmediate, setTimeout } from '@rdmakit/verbs/internal'
