// This process as another program: Node.js has no call for it (before 22.15).
#pragma once

#include <string>
#include <vector>

namespace rdmakit::nbd {

// execvp(3) with this process's environment as it is now. Process id, control group, working folder, standard
// input, output and error, and the descriptors in `kept` stay; memory and threads go. Returns only when it
// failed, with an errno value.
int replace_process(const std::string& program, const std::vector<std::string>& arguments,
                    std::vector<int> kept);

}  // namespace rdmakit::nbd
