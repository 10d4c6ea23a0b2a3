// A client in its handshake. Only the acceptor's own files use it.
#pragma once

#include <memory>
#include <string>

#include "accept/acceptor.h"

namespace rdmakit::nbd {

struct Acceptor::Session {
  Session(int fd, const Offer& offer) : socket(fd), handshake(offer) {}
  UniqueFd socket;
  std::unique_ptr<TlsSession> tls;  // speaks over the socket, so it goes first
  bool encrypted = false;           // TLS has shaken hands
  Handshake handshake;
  std::string peer;
  uint64_t deadline = 0;
  uint64_t heard = 0;          // when it last said something
  uint64_t lane_deadline = 0;  // 0: does not wait for a lane
  NbdLane* lane = nullptr;     // reserved
  uint32_t watched = 0;
  bool over = false;
};

}  // namespace rdmakit::nbd
