#include "verbs-endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace bench {

using namespace rdmakit;

void fail(const std::string& what, int error) {
  std::fprintf(stderr, "%s%s%s\n", what.c_str(), error == 0 ? "" : ": ",
               error == 0 ? "" : std::strerror(error));
  std::exit(1);
}

Uri::Uri(const std::string& text) {
  const size_t mark = text.find("://");
  if (mark == std::string::npos) fail("not a URI: " + text);
  scheme_ = text.substr(0, mark);
  rest_ = text.substr(mark + 3);
  if (scheme_ == "shm") {
    provider = &shm_provider();
    auto& path = reinterpret_cast<sockaddr_un&>(address);
    path.sun_family = AF_UNIX;
    if (rest_.size() >= sizeof path.sun_path) fail("too long a path: " + rest_);
    std::memcpy(path.sun_path, rest_.data(), rest_.size());
    length = sizeof path;
    return;
  }
  if (scheme_ != "rdma" && scheme_ != "iwarp") fail("unknown scheme: " + scheme_);
  provider = scheme_ == "rdma" ? &ibverbs_provider() : &iwarp_provider();
  const size_t colon = rest_.rfind(':');
  auto& internet = reinterpret_cast<sockaddr_in&>(address);
  internet.sin_family = AF_INET;
  length = sizeof internet;
  if (colon == std::string::npos ||
      inet_pton(AF_INET, rest_.substr(0, colon).c_str(), &internet.sin_addr) != 1) {
    fail("not IPV4ADDRESS:PORT: " + rest_);
  }
  internet.sin_port = htons(static_cast<uint16_t>(std::atoi(rest_.c_str() + colon + 1)));
}

std::string Uri::with(const sockaddr_storage& bound) const {
  if (scheme_ == "shm") return scheme_ + "://" + rest_;
  const auto& internet = reinterpret_cast<const sockaddr_in&>(bound);
  return scheme_ + "://" + rest_.substr(0, rest_.rfind(':') + 1) + std::to_string(ntohs(internet.sin_port));
}

Id::Id(std::shared_ptr<ConnectionId> made) : id_(std::move(made)) {
  if (id_ == nullptr) fail("no connection id", errno);
  id_->set_sink([events = events_](CmEvent&& event) {
    const std::lock_guard lock(events->mutex);
    events->queue.push_back(std::move(event));
    events->arrived.notify_all();
  });
}

Id::~Id() {
  if (id_ != nullptr) id_->close();
}

bool Id::next(CmEvent& event) {
  const std::lock_guard lock(events_->mutex);
  if (events_->queue.empty()) return false;
  event = std::move(events_->queue.front());
  events_->queue.pop_front();
  return true;
}

CmEvent Id::expect(CmEvent::Type type) {
  std::unique_lock lock(events_->mutex);
  const bool any =
      events_->arrived.wait_for(lock, std::chrono::seconds(20), [this] { return !events_->queue.empty(); });
  if (!any) fail("no event of the connection within 20 s");
  CmEvent event = std::move(events_->queue.front());
  events_->queue.pop_front();
  if (event.type != type) fail("event " + std::to_string(static_cast<int>(event.type)), event.status);
  return event;
}

Id listen(const Uri& uri) {
  Id id(uri.provider->create_id());
  must(id->listen(reinterpret_cast<const sockaddr*>(&uri.address), uri.length, 1024), "listen");
  std::printf("listening %s\n", uri.with(id->local_address()).c_str());
  std::fflush(stdout);
  return id;
}

Id resolve(const Uri& uri) {
  Id id(uri.provider->create_id());
  must(id->resolve(reinterpret_cast<const sockaddr*>(&uri.address), uri.length, 5000), "resolve");
  id.expect(CmEvent::Type::route_resolved);
  return id;
}

Queue::Queue(Provider& of, ibv_context* context, int entries, Progress progress, bool with_channel)
    : provider(of), pd(of.alloc_pd(context)) {
  if (pd == nullptr) fail("alloc_pd", errno);
  if (with_channel && (channel = of.create_comp_channel(context)) == nullptr)
    fail("create_comp_channel", errno);
  cq = of.create_cq(context, entries, nullptr, channel, progress);
  if (cq == nullptr) fail("create_cq", errno);
}

Queue::~Queue() {
  provider.destroy_cq(cq);
  if (channel != nullptr) provider.destroy_comp_channel(channel);
  provider.dealloc_pd(pd);
}

Endpoint::Endpoint(Queue& of, Id made, uint32_t depth, uint32_t wanted) : queue(of), id(std::move(made)) {
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = attributes.recv_cq = queue.cq;
  attributes.cap = {depth, depth, 1, 1, wanted};
  qp = id->create_qp(queue.pd, &attributes);
  if (qp == nullptr) fail("create_qp", errno);
  inline_data = attributes.cap.max_inline_data;
}

Endpoint::~Endpoint() {
  queue.provider.destroy_qp(qp);
  id->close();
}

void Endpoint::connect(const std::vector<uint8_t>& greeting) {
  ConnectParameters parameters;
  parameters.private_data = greeting;
  parameters.qp = qp;
  must(id->connect(parameters), "connect");
}

void Endpoint::accept(const std::vector<uint8_t>& greeting) {
  ConnectParameters parameters;
  parameters.private_data = greeting;
  parameters.qp = qp;
  must(id->accept(parameters), "accept");
}

Memory::Memory(Queue& of, size_t size)
    : queue(of), bytes(size), data(static_cast<uint8_t*>(of.provider.map_memory(size, {}))) {
  if (data == nullptr) fail("map_memory", errno);
  mr = queue.provider.reg_mr(queue.pd, data, bytes,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  if (mr == nullptr) fail("reg_mr", errno);
}

Memory::~Memory() {
  queue.provider.dereg_mr(mr);
  queue.provider.unmap_memory(data, bytes, {});
}

}  // namespace bench
