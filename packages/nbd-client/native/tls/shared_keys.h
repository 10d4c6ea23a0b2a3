// The file of shared keys: a line "name:hex key" for each client, as psktool(1) writes it. Each handshake
// rereads it, so that keys can be added and removed without a restart, and checks each time that it is safe.
#pragma once

#include <string>
#include <string_view>

namespace rdmakit::nbd {

inline constexpr size_t kMaxSharedKeyFile = 1 << 20;

// Reads the whole file. 0 or an errno value with `why`, which never repeats its contents: EPERM others have
// access to it, or to its folder; EFBIG it is larger than kMaxSharedKeyFile.
int read_shared_keys(const std::string& path, std::string& text, std::string& why);

// The hex digits of `name`'s key; empty when there is none. A name that is "#" and hex digits in the file
// stands for those bytes (GnuTLS, "Authentication using PSK"). Other lines are skipped.
std::string_view find_shared_key(std::string_view text, std::string_view name);

// Whether there is a key in it at all.
bool has_shared_key(std::string_view text);

}  // namespace rdmakit::nbd
