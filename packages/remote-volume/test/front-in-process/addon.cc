// The addon of this package: a volume with the in-process front. It is for the tests of a checkout and is not
// published: request() trusts the memory addresses that it gets.
#include <napi.h>

#include <memory>
#include <mutex>

#include "binding/convert.h"
#include "binding/volume_object.h"
#include "in_process_engine.h"
#include "rdmakit/binding_call.h"

namespace rdmakit::volume::binding {

const char* const kPackage = "@rdmakit/remote-volume";
const napi_type_tag kEngineTag{0x5a0d3c9be1724f68, 0x7264'6d61'766f'6c01};

void describe_front(Napi::Object&, VolumeEngine&) {}

namespace {

constexpr napi_type_tag kQueueTag{0x5a0d3c9be1724f68, 0x7264'6d61'7175'6501};

// One caller at a time: who asks waits off the JavaScript thread.
struct Caller {
  std::shared_ptr<InProcessQueue> queue;
  std::mutex asking;
  ~Caller() { queue->leave(); }
};

using SharedCaller = std::shared_ptr<Caller>;

SharedCaller to_caller(const Napi::Value& value) {
  return to_external<SharedCaller>(value, kQueueTag, "a queue");
}

Request to_request(const Napi::CallbackInfo& info) {
  Request request;
  request.kind = to_choice<RequestKind>(info[1], "kind",
                                        {{"read", RequestKind::read},
                                         {"write", RequestKind::write},
                                         {"trim", RequestKind::trim},
                                         {"flush", RequestKind::flush}});
  request.offset = to_uint64(info[2], "offset");
  if (request.kind == RequestKind::trim) {
    request.length = to_uint32(info[3], "length");
  } else if (request.kind != RequestKind::flush) {
    if (!info[3].IsTypedArray()) throw Napi::TypeError::New(info.Env(), "memory must be a Uint8Array");
    auto memory = info[3].As<Napi::Uint8Array>();
    if (memory.ByteLength() > UINT32_MAX)
      throw Napi::TypeError::New(info.Env(), "memory must be shorter than 4 GiB");
    request.memory = memory.Data();
    request.length = static_cast<uint32_t>(memory.ByteLength());
  }
  return request;
}

// The reference keeps the memory from the collector.
class RequestWorker final : public ErrnoWorker {
 public:
  RequestWorker(const Napi::CallbackInfo& info, SharedCaller caller, const Request& request)
      : ErrnoWorker(info.Env(), "request"), caller_(std::move(caller)), request_(request) {
    if (request.memory != nullptr) memory_ = Napi::Reference<Napi::Value>::New(info[3], 1);
  }

  void Execute() override {
    const std::lock_guard lock(caller_->asking);
    InProcessQueue::Answer answer;
    if (!caller_->queue->submit(request_, 0) || !caller_->queue->await(answer)) {
      error_ = ESHUTDOWN;
      return;
    }
    error_ = answer.error;
    while (answer.memory_in_use && caller_->queue->await(answer)) {
    }
  }

 private:
  Napi::Reference<Napi::Value> memory_;
  SharedCaller caller_;
  const Request request_;
};

Napi::Value create_engine(const Napi::CallbackInfo& info) {
  if (!info[0].IsObject() || !info[1].IsFunction())
    throw Napi::TypeError::New(info.Env(), "expected options and a function");
  VolumeEngineOptions options;
  to_volume_options(info[0].As<Napi::Object>(), options);
  return make_engine(info, info[1].As<Napi::Function>(),
                     [&options](VolumeEngine::Sink sink, int& error, std::string& why) {
                       return EngineOwner(InProcessEngine::open(options, std::move(sink), error, why));
                     });
}

// attachQueue(engine, lane): a queue, whose caller leaves the lane when it is collected.
Napi::Value attach_queue(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  auto caller = std::make_shared<Caller>();
  caller->queue = std::make_shared<InProcessQueue>();
  auto& engine = static_cast<InProcessEngine&>(to_engine(info[0]));
  const int error = engine.attach(to_uint32(info[1], "lane"), caller->queue);
  check(env, error, "attachQueue", error == EBUSY ? "the lane serves another caller" : "");
  auto external = Napi::External<SharedCaller>::New(
      env, std::make_unique<SharedCaller>(std::move(caller)).release(),
      [](Napi::Env, SharedCaller* data) { const std::unique_ptr<SharedCaller> owned(data); });
  napi_type_tag_object(env, external, &kQueueTag);
  return external;
}

// request(queue, kind, offset, memory or length): memory lies in the lane's memory regions.
Napi::Value ask(const Napi::CallbackInfo& info) {
  return start<RequestWorker>(info, to_caller(info[0]), to_request(info));
}

}  // namespace

}  // namespace rdmakit::volume::binding

static Napi::Object initialize(Napi::Env, Napi::Object exports) {
  using namespace rdmakit::volume::binding;
  add_volume_functions(exports);
  rdmakit::define(exports, "createEngine", create_engine);
  rdmakit::define(exports, "attachQueue", attach_queue);
  rdmakit::define(exports, "request", ask);
  return exports;
}

NODE_API_MODULE(remote_volume, initialize)
