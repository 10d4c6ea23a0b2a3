# Compiles for Linux on 64-bit ARM. RDMAKIT_CROSS has what this machine lacks for it (cross.mjs): include/, and root/ with
# the files of Debian's packages for arm64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(cross $ENV{RDMAKIT_CROSS})
set(CMAKE_CXX_FLAGS_INIT "-isystem ${cross}/include")
set(CMAKE_LIBRARY_PATH ${cross}/root/usr/lib/aarch64-linux-gnu)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
