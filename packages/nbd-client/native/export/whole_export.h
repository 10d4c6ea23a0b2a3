// The export that is all of a volume.
#pragma once

#include "protocol/request.h"
#include "volume/volume.h"

namespace rdmakit::nbd {

using namespace volume;

inline Export whole_export(const Volume& volume) {
  Export whole;
  whole.size = volume.size();
  whole.flags = kFlagHasFlags | kFlagSendFlush | kFlagSendFua | kFlagSendTrim | kFlagSendWriteZeroes |
                kFlagCanMultiConn | kFlagSendCache | kFlagSendFastZero;
  if (volume.read_only()) whole.flags |= kFlagReadOnly;
  whole.minimum_block = volume.minimum_block();
  return whole;
}

}  // namespace rdmakit::nbd
