// Memory that was given to JavaScript, after the end of its region. Views of it wait in queues of streams,
// and Node's I/O continues at its address: fs.read() into it, socket.write() from it. All of them hold the
// ArrayBuffer, so the memory stays mapped, and is not reused, until V8 has collected that.
#pragma once

#include <napi.h>

#include <memory>

#include "base/mapped_memory.h"
#include "provider/provider.h"

namespace rdmakit::binding {

// Zeroed memory of a provider. It outlives its registration for as long as JavaScript may reach it.
class Mapping {
 public:
  // nullptr with errno set. The pages are touched: the memory exists, or the call fails.
  static std::shared_ptr<Mapping> create(Provider& provider, size_t length, const MemoryOptions& options);
  Mapping(Provider& provider, void* address, size_t length, const MemoryOptions& options)
      : provider_(provider), address_(address), length_(length), options_(options) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { provider_.unmap_memory(address_, length_, options_); }
  void* address() const { return address_; }
  size_t length() const { return length_; }

 private:
  Provider& provider_;
  void* address_;
  size_t length_;
  MemoryOptions options_;
};

// The one ArrayBuffer over a mapping. On JavaScript's thread.
class MappedBuffer {
 public:
  MappedBuffer(Napi::Env env, std::shared_ptr<Mapping> mapping);
  Napi::ArrayBuffer value() const { return reference_.Value(); }
  // The program got it. What never was given is detached with its region, and unmapped.
  void give() { reach_->given = true; }
  // Its region is closed.
  void end();

 private:
  struct Reach {
    std::shared_ptr<Mapping> mapping;
    bool given = false;
    bool kept = false;
  };
  Napi::Reference<Napi::ArrayBuffer> reference_;
  std::shared_ptr<Reach> reach_;  // the ArrayBuffer's memory has it, too
};

// The memory of closed regions of this environment that stays mapped for JavaScript. V8 knows its size and
// collects it when it chooses to; at 256 MiB, and whenever it is twice as much as a collection left, this
// forces a collection.
struct KeptMemory {
  size_t regions = 0;
  size_t bytes = 0;
  // A thread runs one environment.
  static KeptMemory& own();
  void add(napi_env env, size_t length);
  void remove(size_t length);

 private:
  static constexpr size_t kLimit = size_t{256} << 20;
  size_t collect_at_ = kLimit;
};

}  // namespace rdmakit::binding
