// The lab's agent: process 1 of a guest. It starts and signals processes at the host's wish and
// carries their output and exit status back, all over one virtio-serial port.
//
//   frame, both ways:  u32 payload length | u32 process | u8 kind | payload      (little endian)
//
// The process number is chosen by the host. A C++ program, because Node takes over a second to
// start in an emulated guest, and because it must stay alive when the guest runs out of memory.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

enum class Kind : std::uint8_t {
  // From the host.
  Start = 1,     // cwd \0 {NAME=value \0} \0 {argument \0}
  Signal = 2,    // u8 signal, u8 whether its whole process group gets it
  PowerOff = 3,  // no payload
  // From the guest.
  Ready = 16,   // no payload
  Stdout = 17,  // bytes
  Stderr = 18,  // bytes
  Exit = 19,    // u8 exit status, u8 signal that ended it (0: none)
};

constexpr std::size_t headerSize = 9;
constexpr std::size_t maxPayload = 1 << 20;

struct Process {
  std::uint32_t id;
  pid_t pid;
  std::array<int, 2> output;  // read ends of its stdout and stderr; -1 once at end of file
};

[[noreturn]] void powerOff() {
  reboot(RB_POWER_OFF);
  _exit(1);  // Process 1 gone means a kernel panic, and panic=-1 ends the guest as well.
}

void writeAll(int fd, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) powerOff();  // Without a host there is no one left to serve.
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
}

std::uint32_t readU32(const char* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::array<int, 2> makePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) powerOff();
  return ends;
}

[[noreturn]] void execute(std::string payload, int out, int err) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setsid();
  const int in = open("/dev/null", O_RDONLY);
  dup2(in, 0);
  dup2(out, 1);
  dup2(err, 2);

  std::vector<char*> environment;
  std::vector<char*> arguments;
  std::vector<char*>* list = &environment;
  char* const end = payload.data() + payload.size();
  char* const cwd = payload.data();
  for (char* p = cwd + std::strlen(cwd) + 1; p < end; p += std::strlen(p) + 1) {
    if (*p == '\0' && list == &environment) {
      list = &arguments;
    } else {
      list->push_back(p);
    }
  }
  environment.push_back(nullptr);
  arguments.push_back(nullptr);
  environ = environment.data();
  if (chdir(cwd) != 0) {
    dprintf(2, "agent: chdir %s: %s\n", cwd, std::strerror(errno));
  } else if (arguments.front() != nullptr) {
    execvp(arguments.front(), arguments.data());
    dprintf(2, "agent: %s: %s\n", arguments.front(), std::strerror(errno));
  }
  _exit(127);
}

class Agent {
 public:
  Agent(int port, int children) : port_(port), children_(children) {}

  [[noreturn]] void serve() {
    send(0, Kind::Ready, {});
    for (;;) {
      std::vector<pollfd> polled{{port_, POLLIN, 0}, {children_, POLLIN, 0}};
      for (const Process& process : processes_) {
        for (const int fd : process.output) polled.push_back({fd, POLLIN, 0});
      }
      if (poll(polled.data(), polled.size(), -1) < 0) continue;
      // Output before exits: a process's last words travel ahead of its status.
      for (std::size_t i = 0; i < processes_.size(); i++) {
        for (std::size_t stream = 0; stream < 2; stream++) {
          if (polled[2 + 2 * i + stream].revents != 0) forward(processes_[i], stream);
        }
      }
      if (polled[1].revents != 0) reap();
      if (polled[0].revents != 0) receive();
    }
  }

 private:
  void send(std::uint32_t id, Kind kind, std::span<const char> payload) {
    std::array<char, headerSize> header{};
    const auto length = static_cast<std::uint32_t>(payload.size());
    std::memcpy(header.data(), &length, 4);
    std::memcpy(header.data() + 4, &id, 4);
    header[8] = static_cast<char>(kind);
    writeAll(port_, header.data(), header.size());
    writeAll(port_, payload.data(), payload.size());
  }

  // Sends what one pipe holds; false at its end or when it is empty.
  bool forward(Process& process, std::size_t stream) {
    int& fd = process.output[stream];
    if (fd < 0) return false;
    static std::array<char, 65536> buffer;
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n > 0) {
      send(process.id, stream == 0 ? Kind::Stdout : Kind::Stderr,
           {buffer.data(), static_cast<std::size_t>(n)});
      return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    close(fd);
    fd = -1;
    return false;
  }

  void reap() {
    std::array<signalfd_siginfo, 16> info;
    [[maybe_unused]] const ssize_t n = read(children_, info.data(), sizeof info);
    int status = 0;
    // As process 1 the agent also inherits orphans, which are reaped and not reported.
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto it = std::find_if(processes_.begin(), processes_.end(),
                                   [pid](const Process& process) { return process.pid == pid; });
      if (it == processes_.end()) continue;
      for (std::size_t stream = 0; stream < 2; stream++) {
        while (forward(*it, stream)) {
        }
        if (it->output[stream] >= 0) close(it->output[stream]);
      }
      const std::array<char, 2> exit{static_cast<char>(WIFEXITED(status) ? WEXITSTATUS(status) : 0),
                                     static_cast<char>(WIFSIGNALED(status) ? WTERMSIG(status) : 0)};
      send(it->id, Kind::Exit, exit);
      processes_.erase(it);
    }
  }

  void receive() {
    std::array<char, 65536> buffer;
    const ssize_t n = read(port_, buffer.data(), buffer.size());
    if (n == 0) powerOff();  // The host closed its end: it died, or does not want this guest any more.
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) return;
      powerOff();
    }
    received_.append(buffer.data(), static_cast<std::size_t>(n));
    while (received_.size() >= headerSize) {
      const std::uint32_t length = readU32(received_.data());
      if (length > maxPayload) powerOff();
      if (received_.size() < headerSize + length) return;
      handle(readU32(received_.data() + 4), static_cast<Kind>(received_[8]),
             received_.substr(headerSize, length));
      received_.erase(0, headerSize + length);
    }
  }

  void handle(std::uint32_t id, Kind kind, const std::string& payload) {
    if (kind == Kind::PowerOff) powerOff();
    if (kind == Kind::Start) start(id, payload);
    if (kind == Kind::Signal && payload.size() == 2) {
      for (const Process& process : processes_) {
        if (process.id == id) kill(payload[1] != 0 ? -process.pid : process.pid, payload[0]);
      }
    }
  }

  void start(std::uint32_t id, const std::string& payload) {
    const auto [outRead, outWrite] = makePipe();
    const auto [errRead, errWrite] = makePipe();
    const pid_t pid = fork();
    if (pid == 0) execute(payload, outWrite, errWrite);
    close(outWrite);
    close(errWrite);
    if (pid < 0) {
      close(outRead);
      close(errRead);
      const std::array<char, 2> exit{127, 0};
      send(id, Kind::Exit, exit);
      return;
    }
    fcntl(outRead, F_SETFL, O_NONBLOCK);
    fcntl(errRead, F_SETFL, O_NONBLOCK);
    processes_.push_back({id, pid, {outRead, errRead}});
  }

  int port_;
  int children_;
  std::string received_;
  std::vector<Process> processes_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: agent PORT\n");
    return 2;
  }
  const int port = open(argv[1], O_RDWR | O_CLOEXEC);
  if (port < 0) {
    std::fprintf(stderr, "agent: %s: %s\n", argv[1], std::strerror(errno));
    return 1;
  }
  mlockall(MCL_CURRENT | MCL_FUTURE);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  Agent(port, signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)).serve();
}
