// libFuzzer inside of Node.js, for targets in TypeScript. It runs on a thread of its own and hands each input
// to the event loop, which says when it is done with it and whether it failed. Its counters are memory of
// JavaScript's that control_coverage.ts makes the code count in.
#define NAPI_VERSION 9
#include <node_api.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" {
int LLVMFuzzerRunDriver(int* argc, char*** argv, int (*target)(const uint8_t* data, size_t size));
void __sanitizer_cov_8bit_counters_init(uint8_t* first, uint8_t* end);
void __sanitizer_cov_pcs_init(const uintptr_t* first, const uintptr_t* end);
}

namespace {

// libFuzzer's -timeout goes by a signal that reaches whichever thread, and counts on its own only.
constexpr std::chrono::seconds kPatience{25};

void must(napi_status status, const char* what) {
  if (status == napi_ok) return;
  std::fprintf(stderr, "libfuzzer_host: %s failed (%d)\n", what, status);
  std::abort();
}

// The one run of the process; never destroyed, for libFuzzer ends the process from its own thread.
struct Run {
  std::mutex mutex;
  std::condition_variable changed;
  napi_threadsafe_function play = nullptr;
  const uint8_t* data = nullptr;
  size_t size = 0;
  bool done = false;
  bool failed = false;
};
Run& run = *new Run;

// On libFuzzer's thread.
int one(const uint8_t* data, size_t size) {
  std::unique_lock lock(run.mutex);
  run.data = data;
  run.size = size;
  run.done = false;
  must(napi_call_threadsafe_function(run.play, nullptr, napi_tsfn_blocking), "calling JavaScript");
  if (!run.changed.wait_for(lock, kPatience, [] { return run.done; })) {
    std::fprintf(stderr, "the input takes more than %lld s\n", static_cast<long long>(kPatience.count()));
    run.failed = true;
  }
  // libFuzzer keeps the input that it was at when this comes.
  if (run.failed) std::abort();
  return 0;
}

// On the event loop.
void play(napi_env env, napi_value callback, void*, void*) {
  if (env == nullptr) return;
  napi_value input, global;
  {
    const std::lock_guard lock(run.mutex);
    must(napi_create_buffer_copy(env, run.size, run.data, nullptr, &input), "copying the input");
  }
  must(napi_get_global(env, &global), "finding the global object");
  must(napi_call_function(env, global, callback, 1, &input, nullptr), "the target");
}

// count(counters: Buffer): they are read after each input, from now until the end.
napi_value count(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value argument;
  must(napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr), "reading arguments");
  void* counters;
  size_t size;
  must(napi_get_buffer_info(env, argument, &counters, &size), "reading the counters");
  napi_ref kept;
  must(napi_create_reference(env, argument, 1, &kept), "keeping the counters");
  // Each counter needs an address of code, with flags; there is none, so any that differ.
  static uintptr_t address = 0;
  auto& addresses = *new std::vector<uintptr_t>;
  for (size_t i = 0; i < size; i++) {
    addresses.push_back(address += 16);
    addresses.push_back(0);
  }
  auto* first = static_cast<uint8_t*>(counters);
  __sanitizer_cov_8bit_counters_init(first, first + size);
  __sanitizer_cov_pcs_init(addresses.data(), addresses.data() + addresses.size());
  return nullptr;
}

// start(play: (input: Buffer) => void, ...arguments: string[]), the program's name first.
napi_value start(napi_env env, napi_callback_info info) {
  size_t count = 64;
  napi_value values[64];
  must(napi_get_cb_info(env, info, &count, values, nullptr, nullptr), "reading arguments");
  auto& arguments = *new std::vector<std::string>;
  for (size_t i = 1; i < count && i < 64; i++) {
    size_t length;
    must(napi_get_value_string_utf8(env, values[i], nullptr, 0, &length), "reading an argument");
    std::string text(length, '\0');
    must(napi_get_value_string_utf8(env, values[i], text.data(), length + 1, &length), "reading an argument");
    arguments.push_back(text);
  }
  napi_value name;
  must(napi_create_string_utf8(env, "libFuzzer", NAPI_AUTO_LENGTH, &name), "naming the run");
  must(napi_create_threadsafe_function(env, values[0], nullptr, name, 0, 1, nullptr, nullptr, nullptr, play,
                                       &run.play),
       "making the target callable");
  // libFuzzer calls exit() while the event loop runs, which must not come down under it.
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
  std::thread([&arguments] {
    std::vector<char*> pointers;
    for (auto& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    int number = static_cast<int>(arguments.size());
    char** first = pointers.data();
    std::exit(LLVMFuzzerRunDriver(&number, &first, one));
  }).detach();
  return nullptr;
}

// done(failed: boolean): of the input that play was called with.
napi_value done(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value argument;
  must(napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr), "reading arguments");
  const std::lock_guard lock(run.mutex);
  must(napi_get_value_bool(env, argument, &run.failed), "reading the outcome");
  run.done = true;
  run.changed.notify_one();
  return nullptr;
}

}  // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
      {"count", nullptr, count, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"start", nullptr, start, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"done", nullptr, done, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  must(napi_define_properties(env, exports, 3, functions), "making the exports");
  return exports;
}
