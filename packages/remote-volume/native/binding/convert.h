// Between JavaScript values and ours: every argument is checked before it is used.
#pragma once

#include <napi.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "rdmakit/binding_call.h"
#include "rdmakit/handle.h"

namespace rdmakit::volume::binding {

// The package of the addon that this is compiled into: the addon says so.
extern const char* const kPackage;

// An Error with `code` (errno name) and `syscall`.
Napi::Error failure(Napi::Env env, int error, const char* syscall, const std::string& why);
// Throws it unless `error` is 0.
void check(Napi::Env env, int error, const char* syscall, const std::string& why);

uint64_t to_uint64(const Napi::Value& value, const char* what);
uint32_t to_uint32(const Napi::Value& value, const char* what);
std::string to_string(const Napi::Value& value, const char* what);

// The choice that a string names.
template <typename Choice>
Choice to_choice(const Napi::Value& value, const char* what,
                 std::initializer_list<std::pair<const char*, Choice>> choices) {
  const std::string given = to_string(value, what);
  std::string error = std::string(what) + " must be ";
  for (const auto& each : choices) {
    if (given == each.first) return each.second;
    if (&each != choices.begin()) error += &each == choices.end() - 1 ? " or " : ", ";
    error += each.first;
  }
  throw Napi::TypeError::New(value.Env(), error);
}

// What `convert` makes of each element of an array.
template <typename Convert>
auto to_vector(const Napi::Value& value, const char* what, Convert convert) {
  if (!value.IsArray()) throw Napi::TypeError::New(value.Env(), std::string(what) + " must be an array");
  const auto list = value.As<Napi::Array>();
  std::vector<decltype(convert(value))> converted;
  for (uint32_t i = 0; i < list.Length(); i++) converted.push_back(convert(list.Get(i)));
  return converted;
}

// An array of what `describe` makes of each item.
template <typename Items, typename Describe>
Napi::Array to_array(Napi::Env env, const Items& items, Describe describe) {
  Napi::Array array = Napi::Array::New(env, items.size());
  for (uint32_t i = 0; i < items.size(); i++) array.Set(i, describe(items[i]));
  return array;
}
// Of numbers or strings, as they are.
template <typename Item>
Napi::Array to_array(Napi::Env env, const std::vector<Item>& items) {
  return to_array(env, items, [](const Item& item) { return item; });
}

// What an external with this tag carries.
template <typename Object>
Object& to_external(const Napi::Value& value, const napi_type_tag& tag, const char* what) {
  bool tagged = false;
  if (value.IsExternal()) napi_check_object_type_tag(value.Env(), value, &tag, &tagged);
  if (!tagged) throw Napi::TypeError::New(value.Env(), std::string("expected ") + what);
  return *value.As<Napi::External<Object>>().Data();
}

// Work off JavaScript's thread that ends with an errno value, and why.
class ErrnoWorker : public PromiseWorker {
 public:
  using PromiseWorker::PromiseWorker;

 protected:
  void OnOK() override {
    if (error_ == 0) {
      deferred_.Resolve(Env().Undefined());
    } else {
      deferred_.Reject(failure(Env(), error_, name_, why_).Value());
    }
  }

  int error_ = 0;
  std::string why_;
};

// The handle in an external of @rdmakit/verbs: its type tag, ABI version, kind and life are checked.
Handle* to_handle(const Napi::Value& value, HandleKind kind, const char* what);

template <typename Reference>
Reference to_reference(const Napi::Value& value, HandleKind kind, const char* what) {
  return Reference(to_handle(value, kind, what));
}
// undefined and null give an empty reference.
template <typename Reference>
Reference to_optional(const Napi::Value& value, HandleKind kind, const char* what) {
  if (value.IsUndefined() || value.IsNull()) return Reference();
  return Reference(to_handle(value, kind, what));
}

}  // namespace rdmakit::volume::binding
