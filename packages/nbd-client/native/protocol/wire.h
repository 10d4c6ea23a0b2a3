// The NBD protocol on the wire: numbers and structs in wire order. Every field is made of bytes, so the
// structs have no padding and no alignment of their own; the size of each is asserted.
// Source of every value: doc/proto.md of NetworkBlockDevice/nbd ("the specification" below).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace rdmakit::nbd {

// An integer in network byte order at any alignment.
template <typename Integer>
class BigEndian {
 public:
  BigEndian() = default;
  BigEndian(Integer value) { *this = value; }
  BigEndian& operator=(Integer value) {
    value = swapped(value);
    std::memcpy(bytes_, &value, sizeof value);
    return *this;
  }
  operator Integer() const {
    Integer value;
    std::memcpy(&value, bytes_, sizeof value);
    return swapped(value);
  }

 private:
  static Integer swapped(Integer value) {
    static_assert(std::endian::native == std::endian::little);
    if constexpr (sizeof value == 2) return __builtin_bswap16(value);
    if constexpr (sizeof value == 4) return __builtin_bswap32(value);
    return __builtin_bswap64(value);
  }
  uint8_t bytes_[sizeof(Integer)];
};
using Be16 = BigEndian<uint16_t>;
using Be32 = BigEndian<uint32_t>;
using Be64 = BigEndian<uint64_t>;

// ---- Handshake ("Newstyle negotiation", "Option types", "Option reply types") ----

inline constexpr uint64_t kInitMagic = 0x4e42444d41474943;    // "NBDMAGIC"
inline constexpr uint64_t kOptionMagic = 0x49484156454F5054;  // "IHAVEOPT"
inline constexpr uint64_t kOptionReplyMagic = 0x3e889045565a9;

inline constexpr uint16_t kHandshakeFixedNewstyle = 1 << 0;
inline constexpr uint16_t kHandshakeNoZeroes = 1 << 1;

enum Option : uint32_t {
  kOptExportName = 1,
  kOptAbort = 2,
  kOptList = 3,
  kOptStartTls = 5,
  kOptInfo = 6,
  kOptGo = 7,
  kOptStructuredReply = 8,
  kOptListMetaContext = 9,
  kOptSetMetaContext = 10,
  kOptExtendedHeaders = 11,
};

enum OptionReplyType : uint32_t {
  kRepAck = 1,
  kRepServer = 2,
  kRepInfo = 3,
  kRepMetaContext = 4,
  kRepErrUnsup = 0x80000001,
  kRepErrPolicy = 0x80000002,
  kRepErrInvalid = 0x80000003,
  kRepErrTlsRequired = 0x80000005,
  kRepErrUnknown = 0x80000006,
  kRepErrShutdown = 0x80000007,
  kRepErrTooBig = 0x80000009,
};

enum InfoType : uint16_t {
  kInfoExport = 0,
  kInfoName = 1,
  kInfoDescription = 2,
  kInfoBlockSize = 3,
};

struct Greeting {        // server -> client, first thing
  Be64 magic;            // kInitMagic
  Be64 option_magic;     // kOptionMagic
  Be16 handshake_flags;  // kHandshake…
};
static_assert(sizeof(Greeting) == 18);

struct OptionHeader {  // client -> server
  Be64 magic;          // kOptionMagic
  Be32 option;         // Option
  Be32 length;         // of the payload that follows
};
static_assert(sizeof(OptionHeader) == 16);

struct OptionReply {  // server -> client
  Be64 magic;         // kOptionReplyMagic
  Be32 option;        // the option that this answers
  Be32 type;          // OptionReplyType
  Be32 length;        // of the payload that follows
};
static_assert(sizeof(OptionReply) == 20);

struct InfoExport {         // payload of a kRepInfo
  Be16 type;                // kInfoExport
  Be64 size;                // bytes of the export
  Be16 transmission_flags;  // kFlag…
};
static_assert(sizeof(InfoExport) == 12);

struct InfoBlockSize {  // payload of a kRepInfo
  Be16 type;            // kInfoBlockSize
  Be32 minimum;         // smallest length and alignment
  Be32 preferred;       // of an efficient request
  Be32 maximum;         // largest payload of READ and WRITE
};
static_assert(sizeof(InfoBlockSize) == 14);

struct ExportNameReply {    // answer to kOptExportName
  Be64 size;                // bytes of the export
  Be16 transmission_flags;  // kFlag…
  uint8_t zeroes[124];      // left out when both sides agreed on kHandshakeNoZeroes
};
static_assert(sizeof(ExportNameReply) == 134);

// ---- Transmission ("Transmission phase", "Transmission flags") ----

inline constexpr uint16_t kFlagHasFlags = 1 << 0;
inline constexpr uint16_t kFlagReadOnly = 1 << 1;
inline constexpr uint16_t kFlagSendFlush = 1 << 2;
inline constexpr uint16_t kFlagSendFua = 1 << 3;
inline constexpr uint16_t kFlagSendTrim = 1 << 5;
inline constexpr uint16_t kFlagSendWriteZeroes = 1 << 6;
inline constexpr uint16_t kFlagSendDf = 1 << 7;
inline constexpr uint16_t kFlagCanMultiConn = 1 << 8;
inline constexpr uint16_t kFlagSendCache = 1 << 10;
inline constexpr uint16_t kFlagSendFastZero = 1 << 11;

inline constexpr uint32_t kRequestMagic = 0x25609513;
inline constexpr uint32_t kSimpleReplyMagic = 0x67446698;
inline constexpr uint32_t kStructuredReplyMagic = 0x668e33ef;

enum Command : uint16_t {
  kCmdRead = 0,
  kCmdWrite = 1,
  kCmdDisconnect = 2,
  kCmdFlush = 3,
  kCmdTrim = 4,
  kCmdCache = 5,
  kCmdWriteZeroes = 6,
  kCmdBlockStatus = 7,
};

inline constexpr uint16_t kCmdFlagFua = 1 << 0;
inline constexpr uint16_t kCmdFlagNoHole = 1 << 1;
inline constexpr uint16_t kCmdFlagDf = 1 << 2;
inline constexpr uint16_t kCmdFlagReqOne = 1 << 3;
inline constexpr uint16_t kCmdFlagFastZero = 1 << 4;

struct RequestHeader {  // client -> server
  Be32 magic;           // kRequestMagic
  Be16 flags;           // kCmdFlag…
  Be16 type;            // Command
  Be64 cookie;          // chosen by the client, given back as it is
  Be64 offset;          // bytes
  Be32 length;          // bytes; the payload of a WRITE follows
};
static_assert(sizeof(RequestHeader) == 28);

struct SimpleReply {  // server -> client; the data of a successful READ follows
  Be32 magic;         // kSimpleReplyMagic
  Be32 error;         // ErrorCode
  Be64 cookie;        // the request's
};
static_assert(sizeof(SimpleReply) == 16);

// "Structured reply message": one or more chunks answer a request.

inline constexpr uint16_t kChunkDone = 1 << 0;  // the last chunk of its reply

enum ChunkType : uint16_t {
  kChunkNone = 0,
  kChunkOffsetData = 1,
  kChunkOffsetHole = 2,
  kChunkBlockStatus = 5,
  kChunkError = 0x8001,
  kChunkErrorOffset = 0x8002,
};

struct ChunkHeader {  // server -> client; the payload follows
  Be32 magic;         // kStructuredReplyMagic
  Be16 flags;         // kChunkDone
  Be16 type;          // ChunkType
  Be64 cookie;        // the request's
  Be32 length;        // of the payload
};
static_assert(sizeof(ChunkHeader) == 20);

struct OffsetDataChunk {  // the data follow
  ChunkHeader header;
  Be64 offset;  // bytes, of the first one in the export
};
static_assert(sizeof(OffsetDataChunk) == 28);

struct OffsetHoleChunk {
  ChunkHeader header;
  Be64 offset;
  Be32 length;  // bytes that read as zeros
};
static_assert(sizeof(OffsetHoleChunk) == 32);

struct ErrorChunk {  // a text follows, and of kChunkErrorOffset a Be64 with the place
  ChunkHeader header;
  Be32 error;  // ErrorCode
  Be16 message_length;
};
static_assert(sizeof(ErrorChunk) == 26);

struct BlockStatusChunk {  // StatusDescriptors follow, of consecutive extents
  ChunkHeader header;
  Be32 context;  // kBaseAllocation
};
static_assert(sizeof(BlockStatusChunk) == 24);

struct StatusDescriptor {
  Be32 length;  // bytes
  Be32 flags;   // kState…
};
static_assert(sizeof(StatusDescriptor) == 8);

inline constexpr uint32_t kBaseAllocation = 1;  // our id of the context "base:allocation"
inline constexpr uint32_t kStateHole = 1 << 0;
inline constexpr uint32_t kStateZero = 1 << 1;

// "Error values": fixed numbers, whatever the host's errno values are.
enum ErrorCode : uint32_t {
  kOk = 0,
  kEperm = 1,
  kEio = 5,
  kEnomem = 12,
  kEinval = 22,
  kEnospc = 28,
  kEoverflow = 75,
  kEnotsup = 95,
  kEshutdown = 108,
};

}  // namespace rdmakit::nbd
