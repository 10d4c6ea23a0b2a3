#include "ibverbs/reregister.h"

#include <cerrno>

namespace rdmakit::ibverbs {

int reregister(const Libraries& lib, ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length,
               int access) {
  if (lib.rereg_mr == nullptr) return EOPNOTSUPP;
  errno = 0;
  switch (lib.rereg_mr(mr, flags, pd, address, length, access)) {
    case 0:
    case IBV_REREG_MR_ERR_DO_FORK_OLD:  // the region is the new one already
      return 0;
    case IBV_REREG_MR_ERR_INPUT:
    case IBV_REREG_MR_ERR_DONT_FORK_NEW:
      return EINVAL;
    default:
      // The driver failed: what became of the region is not known, unless there is no such command. A
      // library without it leaves errno as it is or says EOPNOTSUPP, an old kernel ENOSYS.
      if (errno == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return EOPNOTSUPP;
      return errno == EINVAL ? EIO : errno;
  }
}

}  // namespace rdmakit::ibverbs
