#include "ibverbs/libraries.h"

#include <dlfcn.h>

#include <cstring>

namespace rdmakit::ibverbs {
namespace {

struct Loaded {
  Libraries functions{};
  std::string problem;
};

constexpr const char* kInstall =
    "install rdma-core's libraries (Debian: apt install libibverbs1 librdmacm1 ibverbs-providers)";

void* open_library(const char* file, std::string& problem) {
  // RTLD_GLOBAL is not needed: device drivers are loaded by libibverbs itself.
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) problem = std::string(file) + " cannot be loaded; " + kInstall;
  return library;
}

template <typename Function>
void find(void* library, const char* name, Function*& function, std::string& problem) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr && problem.empty()) {
    problem = std::string(name) + " is missing from the installed RDMA libraries; " + kInstall;
  }
}

template <typename Function>
void find_newer(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

Loaded load() {
  Loaded loaded;
  Libraries& f = loaded.functions;
  std::string& problem = loaded.problem;
  void* const verbs = open_library("libibverbs.so.1", problem);
  void* const cm = verbs == nullptr ? nullptr : open_library("librdmacm.so.1", problem);
  if (cm == nullptr) return loaded;
#define RDMAKIT_FIND(name, function) find(verbs, #function, f.name, problem)
  RDMAKIT_LIBIBVERBS(RDMAKIT_FIND)
#undef RDMAKIT_FIND
#define RDMAKIT_FIND(name, function) find_newer(verbs, #function, f.name)
  RDMAKIT_NEWER_LIBIBVERBS(RDMAKIT_FIND)
#undef RDMAKIT_FIND
#define RDMAKIT_FIND(name, function) find(cm, #function, f.name, problem)
  RDMAKIT_LIBRDMACM(RDMAKIT_FIND)
#undef RDMAKIT_FIND
  if (!problem.empty()) return loaded;
  if (const int error = prepare_for_fork(f); error != 0)
    problem = std::string("ibv_fork_init: ") + strerror(error) +
              "; load this before anything else registers memory, or set RDMAV_FORK_SAFE=1";
  return loaded;
}

}  // namespace

int prepare_for_fork(const Libraries& lib) {
  if (lib.is_fork_initialized != nullptr && lib.is_fork_initialized() != IBV_FORK_DISABLED) return 0;
  return lib.fork_init();
}

const Libraries* libraries(std::string& why) {
  static const Loaded loaded = load();
  if (loaded.problem.empty()) return &loaded.functions;
  why = loaded.problem;
  return nullptr;
}

}  // namespace rdmakit::ibverbs
