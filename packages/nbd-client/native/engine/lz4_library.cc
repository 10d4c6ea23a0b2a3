#include "engine/lz4_library.h"

#include <dlfcn.h>

namespace rdmakit::nbd {

namespace {

struct Loaded {
  Lz4 functions;
  std::string why;  // empty: all are there
};

Loaded load() {
  Loaded loaded;
  void* library = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.why = std::string("compression needs liblz4 (Debian: apt install liblz4-1): ") + dlerror();
    return loaded;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) loaded.why = std::string("this liblz4 is too old: it lacks ") + name;
  };
  find(loaded.functions.size_of_state, "LZ4_sizeofState");
  find(loaded.functions.compress, "LZ4_compress_fast_extState");
  find(loaded.functions.decompress, "LZ4_decompress_safe");
  return loaded;
}

}  // namespace

const Lz4* load_lz4(std::string& why) {
  static const Loaded loaded = load();
  why = loaded.why;
  return loaded.why.empty() ? &loaded.functions : nullptr;
}

}  // namespace rdmakit::nbd
