# The native engine of a volume of remote pages. An addon that serves one compiles it in together with its front: no
# addon links another. RDMAKIT_VOLUME_BINDING: the sources of its functions for JavaScript, which belong to the addon.
get_filename_component(RDMAKIT_VOLUME_NATIVE ${CMAKE_CURRENT_LIST_DIR}/../native ABSOLUTE)
file(GLOB RDMAKIT_VOLUME_BINDING CONFIGURE_DEPENDS ${RDMAKIT_VOLUME_NATIVE}/binding/*.cc)
if(NOT TARGET rdmakit_volume)
  file(GLOB volume_sources CONFIGURE_DEPENDS ${RDMAKIT_VOLUME_NATIVE}/*/*.cc)
  list(FILTER volume_sources EXCLUDE REGEX "/binding/")
  add_library(rdmakit_volume STATIC ${volume_sources})
  target_include_directories(rdmakit_volume PUBLIC ${RDMAKIT_VOLUME_NATIVE})
  target_link_libraries(rdmakit_volume PUBLIC rdmakit_base)
  rdmakit_target(rdmakit_volume)
  rdmakit_units(rdmakit_volume)
endif()
