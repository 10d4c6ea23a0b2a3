#include "tls/library.h"

#include "system/loaded_library.h"

namespace rdmakit::nbd {

using namespace volume;

const GnuTls* load_gnutls(std::string& why) {
  static const LoadedLibrary<GnuTls> library(
      "libgnutls.so.30", "TLS needs GnuTLS (Debian: apt install libgnutls30)", [](GnuTls& tls, auto find) {
#define RDMAKIT_LOAD(name) find(tls.name, "gnutls_" #name);
        RDMAKIT_GNUTLS(RDMAKIT_LOAD)
#undef RDMAKIT_LOAD
      });
  return library.functions(why);
}

}  // namespace rdmakit::nbd
