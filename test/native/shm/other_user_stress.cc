// Processes of two users: who may connect, and root, who may.
#include <sys/stat.h>

#include "process.h"

namespace shm_other_user_stress {

using namespace fixture;

constexpr size_t kRegion = 4096;
constexpr size_t kLong = 1024;  // more than a slot holds

void become_another() {
  CHECK(setuid(65534) == 0);
  CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);  // a leak checker traces its own process
}

void stranger_child(const std::string& path) {
  become_another();
  auto end = resolve(path, {});
  connect(*end);
  CHECK(end->id.events->expect(CmEvent::Type::connect_failed).status == EACCES);
}

void another_user() {
  Listener listener;
  { Child child("stranger", listener.path); }  // the mode of the file
  CHECK(chmod(listener.path.c_str(), 0666) == 0);
  { Child child("stranger", listener.path); }  // the credentials of the process
}

// --- Root connects to another user's process. A number is all by which memory that is not shared is reached:
// that process can end, leave its socket to a child, and have root read and write the memory of whatever
// process gets its number.

void await_listener(const std::string& path) {
  const sockaddr_un address = place(path);
  await([&] {
    const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    return ::connect(probe.get(), generic(address), sizeof address) == 0;
  });
}

// Its regions are shared, or it is refused; its receive is not, which shows when a message comes.
void plain_child(const std::string& path) {
  become_another();
  Listener listener(path);
  CmEvent request = listener.events->expect(CmEvent::Type::connect_request);
  End end(Id(std::move(request.request)), {});
  {
    Memory plain(end.pd, kRegion, kAllAccess, Kind::plain);
    accept(end, told(remote(plain)));
    CHECK(end.id.events->expect(CmEvent::Type::connect_failed).status == EPERM);
  }
  Side side = accept_side(listener, {}, kRegion);
  Memory buffer(side.end->pd, kRegion, IBV_ACCESS_LOCAL_WRITE, Kind::plain);
  post_receive(*side.end, 1, buffer.sge(0, kRegion));
  side.end->expect(1, IBV_WC_LOC_PROT_ERR);
  CHECK(is_filled(buffer.data, kRegion, 0));
}

void root_reaches_shared_memory_only() {
  const std::string path = fresh_path();
  Child child("plain", path);
  await_listener(path);
  {
    auto end = resolve(path, {});
    connect(*end);
    CHECK(end->id.events->expect(CmEvent::Type::connect_failed).status == EPERM);
  }
  Side side = connect_side(path, {}, kRegion);
  side.near->fill(1);
  post(*side.end, write_to(side.far, 0, 1), {side.near->sge(0, kRegion)});
  side.end->expect(1);
  post(*side.end, {.wr_id = 2}, {side.near->sge(0, kLong)});
  CHECK(side.end->expect(2, IBV_WC_REM_OP_ERR).vendor_err == ESRCH);
}

STRESS(shm_other_user) {
  if (count == 3) {
    const std::string role = arguments[1], path = arguments[2];
    if (role == "stranger") stranger_child(path);
    if (role == "plain") plain_child(path);
    return 0;
  }
  if (geteuid() != 0) {
    std::puts("another user: SKIPPED, becoming another user takes root");
    return 0;
  }
  timed("another user", another_user);
  timed("root reaches shared memory only", root_reaches_shared_memory_only);
  std::puts("ok");
  return 0;
}

}  // namespace shm_other_user_stress
