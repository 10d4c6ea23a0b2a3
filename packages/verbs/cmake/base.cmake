# native/base, which the native code of every package builds on: one library for whoever comes first.
if(RDMAKIT_BUILT AND NOT TARGET rdmakit_base)
  rdmakit_built(base verbs)
  target_include_directories(rdmakit_base INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../native/include)
elseif(NOT TARGET rdmakit_base)
  file(GLOB base_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../native/base/*.cc)
  add_library(rdmakit_base STATIC ${base_sources})
  target_include_directories(rdmakit_base PUBLIC ${CMAKE_CURRENT_LIST_DIR}/../native
                             ${CMAKE_CURRENT_LIST_DIR}/../native/include)
  rdmakit_target(rdmakit_base)
endif()
