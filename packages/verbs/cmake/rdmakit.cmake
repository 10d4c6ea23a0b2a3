# Shared by the native code of every rdmakit package.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
find_package(Threads REQUIRED)
# Where it is installed, what any checkout has compiled before is not compiled again. scripts/*.sh put its files into the
# project's cache folder.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# What compiles here with other warnings than elsewhere is still right.
set(werror OFF)
if(DEFINED ENV{CI})
  set(werror ON)
endif()
option(RDMAKIT_WERROR "warnings are errors" ${werror})

# Everywhere, so that what is tested is what is published.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libc.so.6 OUTPUT_VARIABLE libc)
set(older OFF)
if(libc MATCHES / AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  set(older ON)
endif()
option(RDMAKIT_OLDER_SYSTEMS "addons run with glibc 2.28 and the C++ library of gcc 8, whatever they are built with"
       ${older})

set(RDMAKIT_SANITIZE "" CACHE STRING "address,undefined or thread: build everything with it")

# Flags of a target that holds rdmakit's own code.
function(rdmakit_target target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -fno-strict-aliasing)
  if(RDMAKIT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
  target_link_libraries(${target} PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  if(RDMAKIT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${RDMAKIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${RDMAKIT_SANITIZE})
    # UBSan's look at a vptr opens a pipe: where there are no descriptors left, it calls every object wrong.
    target_compile_options(${target} PRIVATE -fno-sanitize=vptr)
    # What gcc defines by itself, clang only tells through __has_feature.
    if(RDMAKIT_SANITIZE MATCHES thread)
      target_compile_options(${target} PRIVATE -U__SANITIZE_THREAD__ -D__SANITIZE_THREAD__=1)
    elseif(RDMAKIT_SANITIZE MATCHES address)
      target_compile_options(${target} PRIVATE -U__SANITIZE_ADDRESS__ -D__SANITIZE_ADDRESS__=1)
    endif()
  endif()
endfunction()

# Compiles a target's files in units of eight from the same folder, and what is below native/FOLDER as one: most of a
# compiler's time goes into headers.
# Without RDMAKIT_UNITS each is compiled by itself, as the plain check does, so that none leans on what another
# includes.
option(RDMAKIT_UNITS "compile several files in one go" ON)
function(rdmakit_units target)
  if(NOT RDMAKIT_UNITS)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(folder ${source} ABSOLUTE)
    get_filename_component(folder ${folder} DIRECTORY)
    file(RELATIVE_PATH folder ${CMAKE_CURRENT_SOURCE_DIR} ${folder})
    string(REGEX REPLACE "(native/[^/]+)/.*" "\\1" folder "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    math(EXPR unit "0${${folder}_files} / 8")
    math(EXPR ${folder}_files "0${${folder}_files} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${unit})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# Links an addon for older systems: Node.js itself runs with glibc 2.28 and the C++ library of gcc 8.
set(RDMAKIT_CMAKE ${CMAKE_CURRENT_LIST_DIR})
function(rdmakit_older_systems name)
  set(versions_libc.so.6 "GLIBC_2.28")
  set(versions_libstdc++.so.6 "GLIBCXX_3.4.25 CXXABI_1.3.11")
  foreach(library libc.so.6 libstdc++.so.6)
    set(older ${CMAKE_CURRENT_BINARY_DIR}/older-${library})
    add_custom_command(OUTPUT ${older}
      COMMAND node ${RDMAKIT_CMAKE}/older-library.mjs ${older} ${library} "${versions_${library}}" ${CMAKE_CXX_COMPILER}
      DEPENDS ${RDMAKIT_CMAKE}/older-library.mjs VERBATIM)
    list(APPEND libraries ${older})
    target_link_libraries(${name} PRIVATE -Wl,${older})
  endforeach()
  add_custom_target(${name}_older DEPENDS ${libraries})
  add_dependencies(${name} ${name}_older)
  target_sources(${name} PRIVATE ${RDMAKIT_CMAKE}/older_glibc.cc)
endfunction()

# A Node-API addon NAME.node from binding sources and the libraries it rests on. Nothing is made without
# Node's headers, whose folder cmake-js says.
function(rdmakit_addon name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT CMAKE_JS_INC)
    return()
  endif()
  execute_process(
    COMMAND node -p "require('node-addon-api').include_dir"
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE node_addon_api OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  get_filename_component(node_addon_api "${node_addon_api}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  add_library(${name} SHARED ${arg_SOURCES} ${CMAKE_JS_SRC})
  rdmakit_target(${name})
  rdmakit_units(${name})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".node")
  target_compile_definitions(${name} PRIVATE NAPI_VERSION=9 NODE_ADDON_API_DISABLE_DEPRECATED NODE_ADDON_API_CPP_EXCEPTIONS_ALL
    # In an environment that is ending nothing can be thrown any more: that is not a reason to abort.
    NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS)
  target_include_directories(${name} SYSTEM PRIVATE ${CMAKE_JS_INC} ${node_addon_api})
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} ${CMAKE_JS_LIB})
  # Node unloads an addon with the last worker that used it; our threads still run in its code.
  # It shows Node.js two functions, and nothing that another addon could be linked with instead of its own (liburing's).
  target_link_options(${name} PRIVATE -Wl,-z,nodelete -Wl,--version-script,${RDMAKIT_CMAKE}/addon.map)
  if(RDMAKIT_OLDER_SYSTEMS AND NOT RDMAKIT_SANITIZE)
    rdmakit_older_systems(${name})
  endif()
endfunction()

# A library that npm run build has made already, in the build folder of its package.
option(RDMAKIT_BUILT "link the libraries that npm run build has made" OFF)
get_filename_component(RDMAKIT_PACKAGES ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
function(rdmakit_built library package)
  add_library(rdmakit_${library} STATIC IMPORTED)
  set_target_properties(rdmakit_${library} PROPERTIES
    IMPORTED_LOCATION ${RDMAKIT_PACKAGES}/${package}/build/librdmakit_${library}.a)
  target_include_directories(rdmakit_${library} INTERFACE ${RDMAKIT_PACKAGES}/${package}/native)
  target_link_libraries(rdmakit_${library} INTERFACE ${ARGN} Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

# rdmakit_verbs, rdmakit_ring and rdmakit_nbd for programs outside of the packages (tests, fuzz targets). Compiled
# with the project's own flags; or, with RDMAKIT_BUILT, those that npm run build has compiled already.
macro(rdmakit_libraries)
  set(packages ${RDMAKIT_PACKAGES})
  if(RDMAKIT_BUILT)
    find_library(liburing liburing.a REQUIRED)
    include(${packages}/verbs/cmake/base.cmake)
    include(${packages}/remote-volume/cmake/remote-volume.cmake)
    rdmakit_built(verbs verbs rdmakit_base)
    rdmakit_built(ring ring-transport rdmakit_base)
    rdmakit_built(nbd nbd-client rdmakit_volume ${liburing})
  else()
    add_subdirectory(${packages}/verbs verbs)
    add_subdirectory(${packages}/ring-transport ring-transport)
    add_subdirectory(${packages}/nbd-client nbd-client)
  endif()
endmacro()
