// The other end in a process of its own: this program again, with a role and a path.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "traffic.h"

namespace fixture {

class Child {
 public:
  Child(const std::string& role, const std::string& path) {
    // A fork shares the threads and mappings of no provider: the child starts from nothing.
    constexpr char kProgram[] = "/proc/self/exe";
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that fails leaves no process behind
      execl(kProgram, kProgram, stress::running(), role.c_str(), path.c_str(), nullptr);
      _exit(127);
    }
  }
  Child(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) CHECK(wait() == 0);
  }
  pid_t pid() const { return pid_; }
  void signal(int number) { CHECK(kill(pid_, number) == 0); }
  // Returns when it has stopped: a signal takes its time.
  void stop() {
    signal(SIGSTOP);
    int status = 0;
    await([&] { return waitpid(pid_, &status, WNOHANG | WUNTRACED) == pid_; });
    CHECK(WIFSTOPPED(status));
  }
  // The status as of waitpid(2).
  int wait() {
    int status = 0;
    await([&] {
      const pid_t gone = waitpid(pid_, &status, WNOHANG);
      CHECK(gone >= 0);
      return gone > 0;
    });
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
};

inline std::vector<uint8_t> told(Remote remote) {
  std::vector<uint8_t> bytes(sizeof remote);
  std::memcpy(bytes.data(), &remote, sizeof remote);
  return bytes;
}
inline Remote heard(const std::vector<uint8_t>& bytes) {
  Remote remote;
  CHECK(bytes.size() == sizeof remote);
  std::memcpy(&remote, bytes.data(), sizeof remote);
  return remote;
}

// One end in this process with a region that the other end was told of, and hears of.
struct Side {
  std::unique_ptr<End> end;
  std::unique_ptr<Memory> near;
  Remote far{};
};
using Prepare = std::function<void(Side&)>;

inline Side connect_side(
    const std::string& path, const Options& options, size_t bytes, Kind kind = Kind::shared,
    const Prepare& prepare = [](Side&) {}) {
  Side side{resolve(path, options), nullptr, {}};
  side.near = std::make_unique<Memory>(side.end->pd, bytes, kAllAccess, kind);
  prepare(side);
  connect(*side.end, told(remote(*side.near)));
  side.far = heard(side.end->id.events->expect(CmEvent::Type::established).private_data);
  return side;
}

inline Side accept_side(
    Listener& listener, const Options& options, size_t bytes, Kind kind = Kind::shared,
    const Prepare& prepare = [](Side&) {}) {
  CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
  Side side{std::make_unique<End>(Id(std::move(request.request)), options), nullptr,
            heard(request.private_data)};
  side.near = std::make_unique<Memory>(side.end->pd, bytes, kAllAccess, kind);
  prepare(side);
  accept(*side.end, told(remote(*side.near)));
  side.end->id.events->expect(CmEvent::Type::established);
  return side;
}

}  // namespace fixture
