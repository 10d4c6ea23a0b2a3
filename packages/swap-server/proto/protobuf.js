// protobufjs as generated/control.js sees it: 64-bit fields are plain numbers, exact below 2^53: sizes, and addresses of
// user space (below 2^47). protobufjs itself has one switch for that, which is the whole process's: whoever else decodes
// messages there would lose the upper bits of theirs.
import protobuf from 'protobufjs/minimal.js'

const numberOf = (value) => (typeof value === 'number' ? value : value.toNumber())

class Reader extends protobuf.Reader {
  static create(bytes) {
    return new Reader(bytes)
  }
  int64() {
    return numberOf(super.int64())
  }
  uint64() {
    return numberOf(super.uint64())
  }
  sint64() {
    return numberOf(super.sint64())
  }
  fixed64() {
    return numberOf(super.fixed64())
  }
  sfixed64() {
    return numberOf(super.sfixed64())
  }
}

export default {
  Reader,
  Writer: protobuf.Writer,
  util: Object.create(protobuf.util, { Long: { value: undefined } }),
  roots: {},
}
