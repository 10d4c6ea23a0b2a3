// An address vector as JavaScript gives it (src/address-vector.ts), for address handles and for RTR.
#pragma once

#include <infiniband/verbs.h>
#include <napi.h>

#include <cstring>

#include "binding/values.h"

namespace rdmakit::binding {

inline ibv_gid gid_of(const Napi::Value& value) {
  ibv_gid gid{};
  const auto bytes = value.As<Napi::Uint8Array>();
  if (bytes.ByteLength() != sizeof gid.raw) throw Napi::TypeError::New(value.Env(), "a GID has 16 bytes");
  std::memcpy(gid.raw, bytes.Data(), sizeof gid.raw);
  return gid;
}

inline ibv_ah_attr address_vector_of(const Napi::Object& from) {
  ibv_ah_attr attributes{};
  attributes.port_num = static_cast<uint8_t>(number(from.Get("portNumber")));
  attributes.sl = static_cast<uint8_t>(number(from.Get("serviceLevel")));
  attributes.dlid = static_cast<uint16_t>(number(from.Get("lid")));
  const Napi::Value gid = from.Get("gid");
  if (!gid.IsUndefined()) {
    attributes.is_global = 1;
    attributes.grh.dgid = gid_of(gid);
    attributes.grh.sgid_index = static_cast<uint8_t>(number(from.Get("sourceGidIndex")));
    attributes.grh.hop_limit = static_cast<uint8_t>(number(from.Get("hopLimit")));
    attributes.grh.traffic_class = static_cast<uint8_t>(number(from.Get("trafficClass")));
    attributes.grh.flow_label = number(from.Get("flowLabel"));
  }
  return attributes;
}

}  // namespace rdmakit::binding
