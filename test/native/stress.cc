#include "stress.h"

#include <map>
#include <string>

namespace stress {

namespace {

std::map<std::string, Main>& tests() {
  static std::map<std::string, Main> all;
  return all;
}

const char* name = "";

}  // namespace

Registered::Registered(const char* test, Main main) { tests().emplace(test, main); }

const char* running() { return name; }

}  // namespace stress

int main(int count, char** arguments) {
  const auto found = count < 2 ? stress::tests().end() : stress::tests().find(arguments[1]);
  if (found == stress::tests().end()) {
    std::fprintf(stderr, "usage: %s TEST [ARGUMENT...]\ntests:\n", arguments[0]);
    for (const auto& [test, main] : stress::tests()) std::fprintf(stderr, "  %s\n", test.c_str());
    return 2;
  }
  stress::name = found->first.c_str();
  // A line of output comes when it is printed, also where the output is a pipe: what a hang said last is
  // known then.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return found->second(count - 1, arguments + 1);
}
