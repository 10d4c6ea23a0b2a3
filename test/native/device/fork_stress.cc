// That memory which a device knows stays where it is when this process forks (ibv_fork_init(3)): said to
// libibverbs when it is loaded, before any memory is registered.
#include <dlfcn.h>

#include "../stress.h"
#include "ibverbs/libraries.h"
#include "provider/provider.h"

namespace device_fork_stress {

using rdmakit::ibverbs::Libraries;
using rdmakit::ibverbs::prepare_for_fork;

int inits = 0;
int init() {
  inits++;
  return 0;
}
int init_too_late() { return EINVAL; }

// The kernel copies pages that a device knows at the fork itself, from 5.12 on: nothing is to be done then.
void what_the_kernel_does_is_left_to_it() {
  Libraries lib{};
  lib.fork_init = init;
  for (const auto status : {+[] { return IBV_FORK_UNNEEDED; }, +[] { return IBV_FORK_ENABLED; }}) {
    lib.is_fork_initialized = status;
    CHECK(prepare_for_fork(lib) == 0 && inits == 0);
  }
  lib.is_fork_initialized = [] { return IBV_FORK_DISABLED; };
  CHECK(prepare_for_fork(lib) == 0 && inits == 1);
  lib.is_fork_initialized = nullptr;  // an older rdma-core
  CHECK(prepare_for_fork(lib) == 0 && inits == 2);
  lib.fork_init = init_too_late;
  CHECK(prepare_for_fork(lib) == EINVAL);
}

void the_library_itself() {
  unsetenv("RDMAV_FORK_SAFE");
  unsetenv("IBV_FORK_SAFE");
  std::string why;
  CHECK(rdmakit::ibverbs_provider().available(why) == 0, "%s", why.c_str());
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  CHECK(library != nullptr);
  const auto status = reinterpret_cast<ibv_fork_status (*)()>(dlsym(library, "ibv_is_fork_initialized"));
  CHECK(status != nullptr);
  CHECK(status() != IBV_FORK_DISABLED);
  dlclose(library);
}

STRESS(device_fork) {
  what_the_kernel_does_is_left_to_it();
  the_library_itself();
  return 0;
}

}  // namespace device_fork_stress
