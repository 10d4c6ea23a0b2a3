#include "tls/library.h"

#include <dlfcn.h>

namespace rdmakit::nbd {

namespace {

struct Loaded {
  GnuTls functions;
  std::string why;  // empty: all are there
};

Loaded load() {
  Loaded loaded;
  void* library = dlopen("libgnutls.so.30", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    loaded.why = std::string("TLS needs GnuTLS (Debian: apt install libgnutls30): ") + dlerror();
    return loaded;
  }
#define RDMAKIT_LOAD(name)                                                                \
  loaded.functions.name =                                                                 \
      reinterpret_cast<decltype(loaded.functions.name)>(dlsym(library, "gnutls_" #name)); \
  if (loaded.functions.name == nullptr) loaded.why = "this GnuTLS is too old: it lacks gnutls_" #name;
  RDMAKIT_GNUTLS(RDMAKIT_LOAD)
#undef RDMAKIT_LOAD
  return loaded;
}

}  // namespace

const GnuTls* load_gnutls(std::string& why) {
  static const Loaded loaded = load();
  why = loaded.why;
  return loaded.why.empty() ? &loaded.functions : nullptr;
}

}  // namespace rdmakit::nbd
