#include "binding/memory/kept_memory.h"

#include <algorithm>

namespace rdmakit::binding {
std::shared_ptr<Mapping> Mapping::create(Provider& provider, size_t length, const MemoryOptions& options) {
  void* address = provider.map_memory(length, options);
  return address == nullptr ? nullptr : std::make_shared<Mapping>(provider, address, length, options);
}

MappedBuffer::MappedBuffer(Napi::Env env, std::shared_ptr<Mapping> mapping)
    : reach_(std::make_shared<Reach>()) {
  reach_->mapping = std::move(mapping);
  Mapping& memory = *reach_->mapping;
  const auto collected = [](Napi::Env, void*, std::shared_ptr<Reach>* reach) {
    if ((*reach)->kept) KeptMemory::own().remove((*reach)->mapping->length());
    (*reach)->mapping.reset();
    delete reach;
  };
  reference_ = Napi::Persistent(Napi::ArrayBuffer::New(env, memory.address(), memory.length(), collected,
                                                       new std::shared_ptr<Reach>(reach_)));
}

void MappedBuffer::end() {
  Napi::ArrayBuffer made = reference_.Value();
  if (!reach_->given) {
    if (!made.IsDetached()) made.Detach();
  } else if (reach_->mapping != nullptr) {
    reach_->kept = true;
    KeptMemory::own().add(reference_.Env(), reach_->mapping->length());
  }
  reference_.Reset();
}

KeptMemory& KeptMemory::own() {
  thread_local KeptMemory kept;
  return kept;
}

void KeptMemory::add(napi_env env, size_t length) {
  regions++;
  bytes += length;
  if (bytes < collect_at_) return;
  collect_at_ = 2 * bytes;
  // More than half of any heap: at so much outside of it V8 collects all, at once. The memory is unmapped in
  // a turn of the event loop after this.
  constexpr int64_t kPressure = int64_t{1} << 45;
  int64_t total = 0;
  napi_adjust_external_memory(env, kPressure, &total);
  napi_adjust_external_memory(env, -kPressure, &total);
}

void KeptMemory::remove(size_t length) {
  regions--;
  bytes -= length;
  collect_at_ = std::max(kLimit, std::min(collect_at_, 2 * bytes));
}

}  // namespace rdmakit::binding
