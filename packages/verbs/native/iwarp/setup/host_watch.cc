#include "iwarp/setup/host_watch.h"

#include <cstdlib>

#include "rdmakit/tcp_keepalive.h"

namespace rdmakit::iwarp {

std::chrono::seconds host_silence() {
  static const std::chrono::seconds silence = [] {
    const char* text = std::getenv("RDMAKIT_IWARP_SILENCE");
    const long given = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
    return std::chrono::seconds(given >= 2 && given <= 3600 ? given : kHostSilenceSeconds);
  }();
  return silence;
}

}  // namespace rdmakit::iwarp
