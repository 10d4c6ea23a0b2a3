// A library that is loaded when it is needed for the first time, and stays: one binary runs with and without
// it.
#pragma once

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace rdmakit::volume {

// `Functions` has a pointer for each that is called.
template <typename Functions>
class LoadedLibrary {
 public:
  // `needs` is for people: its purpose, and what to install. `find_all(functions, find)` calls
  // `find(function, name)` for each pointer.
  template <typename FindAll>
  LoadedLibrary(const char* file, const char* needs, FindAll find_all) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why_ = std::string(needs) + ": " + dlerror();
      return;
    }
    find_all(functions_, [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) why_ = std::string("this ") + file + " is too old: it lacks " + name;
    });
  }

  // nullptr with `why`.
  const Functions* functions(std::string& why) const {
    why = why_;
    return why_.empty() ? &functions_ : nullptr;
  }

 private:
  Functions functions_;
  std::string why_;  // empty: all were found
};

}  // namespace rdmakit::volume
