#include "tls/shared_keys.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unique_fd.h"
#include "system/error_reason.h"
#include "system/private_file.h"

namespace rdmakit::nbd {

using namespace volume;

namespace {

int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

// Whole bytes of it, at least one.
bool is_hex(std::string_view text) {
  return !text.empty() && text.size() % 2 == 0 &&
         std::all_of(text.begin(), text.end(), [](char each) { return hex_value(each) >= 0; });
}

bool is_named(std::string_view written, std::string_view name) {
  if (written.empty() || written.front() != '#' || !is_hex(written.substr(1))) return written == name;
  written.remove_prefix(1);
  if (written.size() != 2 * name.size()) return false;
  for (size_t i = 0; i < name.size(); i++) {
    const int byte = hex_value(written[2 * i]) << 4 | hex_value(written[2 * i + 1]);
    if (byte != static_cast<uint8_t>(name[i])) return false;
  }
  return true;
}

// The first line for which wanted(name, hex key) holds: its key.
template <typename Wanted>
std::string_view first_key(std::string_view text, Wanted wanted) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    const size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos) continue;
    const std::string_view key = line.substr(colon + 1);
    if (is_hex(key) && wanted(line.substr(0, colon))) return key;
  }
  return {};
}

}  // namespace

int read_shared_keys(const std::string& path, std::string& text, std::string& why) {
  // Not waiting for a writer, should it be a pipe.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) return with_reason(why, errno, path + ": " + strerror(errno));
  if (!S_ISREG(status.st_mode)) return with_reason(why, EINVAL, path + " is not a regular file");
  if (const int error = check_private(file.get(), path, why); error != 0) return error;
  if (const int error = check_folder(path, why); error != 0) return error;
  text.assign(kMaxSharedKeyFile + 1, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t bytes = read(file.get(), text.data() + have, text.size() - have);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return with_reason(why, errno, path + ": " + strerror(errno));
    if (bytes == 0) break;
    have += static_cast<size_t>(bytes);
  }
  if (have > kMaxSharedKeyFile) return with_reason(why, EFBIG, path + " has more than 1 MiB");
  text.resize(have);
  return 0;
}

std::string_view find_shared_key(std::string_view text, std::string_view name) {
  return first_key(text, [name](std::string_view written) { return is_named(written, name); });
}

bool has_shared_key(std::string_view text) {
  return !first_key(text, [](std::string_view) { return true; }).empty();
}

}  // namespace rdmakit::nbd
