// Options of a volume and its lanes from JavaScript.
#include <algorithm>

#include "base/clock.h"
#include "binding/convert.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

namespace {

Acknowledge to_acknowledge(const Napi::Value& value) {
  const std::string when = to_string(value, "acknowledge");
  if (when == "one") return Acknowledge::one;
  if (when == "backup") return Acknowledge::backup;
  if (when != "all") throw Napi::TypeError::New(value.Env(), "acknowledge must be all, one or backup");
  return Acknowledge::all;
}

Compression to_compression(const Napi::Value& value) {
  const std::string how = to_string(value, "compress");
  if (how == "lz4") return Compression::measured;
  if (how == "lz4-always") return Compression::always;
  if (how != "none") throw Napi::TypeError::New(value.Env(), "compress must be none, lz4 or lz4-always");
  return Compression::off;
}

BackupOptions to_backup(const Napi::Object& from) {
  BackupOptions options;
  options.path = to_string(from.Get("file"), "backup.file");
  options.map_file = to_string(from.Get("map"), "backup.map");
  options.buffers = to_uint32(from.Get("pages"), "backup.pages");
  options.sparse = from.Get("sparse").ToBoolean();
  return options;
}

WaitMode to_wait_mode(const Napi::Value& value) {
  const std::string mode = to_string(value, "waitMode");
  if (mode == "poll") return WaitMode::poll;
  if (mode == "event") return WaitMode::event;
  if (mode != "adaptive") throw Napi::TypeError::New(value.Env(), "waitMode must be poll, event or adaptive");
  return WaitMode::adaptive;
}

}  // namespace

void to_volume_options(const Napi::Object& from, VolumeEngineOptions& options) {
  options.volume.size = to_uint64(from.Get("size"), "size");
  options.volume.slab_size = to_uint64(from.Get("slabSize"), "slabSize");
  options.volume.read_only = from.Get("readOnly").ToBoolean();
  options.acknowledge = to_acknowledge(from.Get("acknowledge"));
  options.refill_rate = to_uint64(from.Get("refillRate"), "refillRate");
  options.read_ahead = to_uint32(from.Get("readAhead"), "readAhead");
  options.volume.thin = from.Get("thin").ToBoolean();
  options.volume.checksums = from.Get("checksums").ToBoolean();
  options.volume.checksum_file = to_string(from.Get("pageChecksums"), "pageChecksums");
  options.volume.compression = to_compression(from.Get("compress"));
  options.volume.length_file = to_string(from.Get("pageLengths"), "pageLengths");
  options.volume.page_map_file = to_string(from.Get("pageMap"), "pageMap");
  options.volume.slab_map_file = to_string(from.Get("slabMap"), "slabMap");
  options.volume.resyncs = from.Get("resync").ToBoolean();
  options.volume.prefault = from.Get("prefault").ToBoolean();
  options.operation_timeout_ns =
      std::max(to_uint32(from.Get("operationTimeout"), "operationTimeout"), 1u) * kMillisecond;
  options.max_spin_ns = to_uint32(from.Get("maxSpin"), "maxSpin") * uint64_t{1000};
  options.swap_safe = from.Get("ioFlusher").ToBoolean();
  options.backup = to_backup(from.Get("backup").As<Napi::Object>());
  options.backup.swap_safe = options.swap_safe;
  options.backup.prefault = options.volume.prefault;
  options.wait_mode = to_wait_mode(from.Get("waitMode"));
}

}  // namespace rdmakit::volume::binding
