# CRC32C, which MPA and the block engine share: one library for whoever comes first.
if(NOT TARGET rdmakit_crc32c)
  add_library(rdmakit_crc32c STATIC
    ${CMAKE_CURRENT_LIST_DIR}/../native/iwarp/crc32c.cc
    ${CMAKE_CURRENT_LIST_DIR}/../native/iwarp/crc32c_folding.cc
    ${CMAKE_CURRENT_LIST_DIR}/../native/iwarp/crc32c_sparse.cc)
  target_include_directories(rdmakit_crc32c PUBLIC ${CMAKE_CURRENT_LIST_DIR}/../native)
  rdmakit_target(rdmakit_crc32c)
endif()
