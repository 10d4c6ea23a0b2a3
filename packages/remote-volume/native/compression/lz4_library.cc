#include "compression/lz4_library.h"

#include "system/loaded_library.h"

namespace rdmakit::volume {

const Lz4* load_lz4(std::string& why) {
  static const LoadedLibrary<Lz4> library(
      "liblz4.so.1", "compression needs liblz4 (Debian: apt install liblz4-1)", [](Lz4& lz4, auto find) {
        find(lz4.size_of_state, "LZ4_sizeofState");
        find(lz4.compress, "LZ4_compress_fast_extState");
        find(lz4.decompress, "LZ4_decompress_safe");
      });
  return library.functions(why);
}

}  // namespace rdmakit::volume
