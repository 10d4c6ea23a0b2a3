// Metadata contexts: there is one, "base:allocation", which BLOCK_STATUS reports.
#include "protocol/handshake.h"

namespace rdmakit::nbd {

constexpr std::string_view kContext = "base:allocation";
constexpr std::string_view kWildcard = "base:";

// NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT: export name, number of queries, the queries.
void Handshake::on_meta_context() {
  const bool select = option_ == kOptSetMetaContext;
  // Replaced "including when this command fails".
  if (select) base_allocation_of_ = nullptr;
  PayloadReader payload({input_.data(), option_length_});
  std::string_view name;
  uint32_t count;
  if (!payload.read(name) || !payload.read(count)) return refuse_option(kRepErrInvalid, "malformed option");
  // All of it must make sense before any of it has an effect.
  PayloadReader probe = payload;
  for (uint32_t i = 0; i < count; i++) {
    std::string_view query;
    if (!probe.read(query)) return refuse_option(kRepErrInvalid, "malformed option");
  }
  if (probe.left() > 0) return refuse_option(kRepErrInvalid, "malformed option");
  if (name.size() > kMaxString) return refuse_option(kRepErrTooBig, "export name too long");
  if (!structured_) return refuse_option(kRepErrInvalid, "structured replies were not negotiated");
  const ExportDescription* found = find(name);
  if (found == nullptr) return refuse_option(kRepErrUnknown, "unknown export name");

  bool named = count == 0 && !select;  // a LIST without a query asks for all
  for (uint32_t i = 0; i < count; i++) {
    std::string_view query;
    payload.read(query);
    named |= query == kContext || (query == kWildcard && !select);
  }
  if (named) {
    std::array<uint8_t, sizeof(Be32) + kContext.size()> context;
    // "Reserved" in the answer to LIST.
    const Be32 id(select ? kBaseAllocation : 0);
    std::memcpy(context.data(), &id, sizeof id);
    std::memcpy(context.data() + sizeof id, kContext.data(), kContext.size());
    reply(kRepMetaContext, context);
    if (select) base_allocation_of_ = found;
  }
  reply(kRepAck);
  expect_option();
}

}  // namespace rdmakit::nbd
