// Options of a volume and its lanes from JavaScript.
#include <algorithm>

#include "base/clock.h"
#include "binding/convert.h"
#include "binding/volume_object.h"

namespace rdmakit::volume::binding {

namespace {

BackupOptions to_backup(const Napi::Object& from) {
  BackupOptions options;
  options.path = to_string(from.Get("file"), "backup.file");
  options.map_file = to_string(from.Get("map"), "backup.map");
  options.buffers = to_uint32(from.Get("pages"), "backup.pages");
  options.sparse = from.Get("sparse").ToBoolean();
  return options;
}

}  // namespace

void to_volume_options(const Napi::Object& from, VolumeEngineOptions& options) {
  options.volume.size = to_uint64(from.Get("size"), "size");
  options.volume.slab_size = to_uint64(from.Get("slabSize"), "slabSize");
  options.volume.read_only = from.Get("readOnly").ToBoolean();
  options.acknowledge = to_choice<Acknowledge>(
      from.Get("acknowledge"), "acknowledge",
      {{"all", Acknowledge::all}, {"one", Acknowledge::one}, {"backup", Acknowledge::backup}});
  options.refill_rate = to_uint64(from.Get("refillRate"), "refillRate");
  options.read_ahead = to_uint32(from.Get("readAhead"), "readAhead");
  options.volume.thin = from.Get("thin").ToBoolean();
  options.volume.checksums = from.Get("checksums").ToBoolean();
  options.volume.checksum_file = to_string(from.Get("pageChecksums"), "pageChecksums");
  options.volume.compression = to_choice<Compression>(
      from.Get("compress"), "compress",
      {{"none", Compression::off}, {"lz4", Compression::measured}, {"lz4-always", Compression::always}});
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
  options.wait_mode = to_choice<WaitMode>(
      from.Get("waitMode"), "waitMode",
      {{"poll", WaitMode::poll}, {"event", WaitMode::event}, {"adaptive", WaitMode::adaptive}});
}

}  // namespace rdmakit::volume::binding
