// A listening socket, and what must be undone when it goes.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace rdmakit::nbd {

class Listener {
 public:
  Listener() = default;
  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  // Removes the socket file, if it is still ours.
  ~Listener();

  // Both: 0 or an errno value with `why`.
  // Mode 0600. Replaces the socket file of a server that is gone (no process accepts on it); EADDRINUSE if
  // one does, EEXIST if the path is something else.
  int open_unix(const std::string& path, std::string& why);
  // A name or a numeric address; port 0 takes a free one: see port().
  int open_tcp(const std::string& host, uint16_t port, std::string& why);

  int fd() const { return fd_.get(); }
  const std::string& address() const { return address_; }  // for people
  const std::string& host() const { return host_; }
  uint16_t port() const { return port_; }

 private:
  int bind_unix(const std::string& path);

  UniqueFd fd_;
  std::string address_;
  std::string host_;
  uint16_t port_ = 0;
  std::string path_;  // of the socket file
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace rdmakit::nbd
