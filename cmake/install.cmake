# `cmake --install`: the library, its headers, the command, and the package for find_package(narrow).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS narrow EXPORT narrow_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(NARROW_BUILD_TOOLS)
  install(TARGETS narrow_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_BINARY_DIR}/tools/narrow/share/ DESTINATION ${CMAKE_INSTALL_DATADIR})  # manual pages, completions
endif()
install(EXPORT narrow_targets NAMESPACE narrow:: FILE narrow-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/narrow)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/narrow-config.cmake.in ${PROJECT_BINARY_DIR}/narrow-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/narrow)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/narrow-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/narrow-config.cmake ${PROJECT_BINARY_DIR}/narrow-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/narrow)

get_target_property(library_type narrow TYPE)
set(library_is_static OFF)
if(library_type STREQUAL "STATIC_LIBRARY")
  set(library_is_static ON)
endif()

# pkg-config: the file finds its prefix from where it lies. A static library names what it needs itself.
file(RELATIVE_PATH NARROW_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" NARROW_PC_PREFIX ${NARROW_PC_PREFIX})
set(NARROW_PC_LIBRARIES)
if(library_is_static)
  set(NARROW_PC_LIBRARIES " ${OpenMP_CXX_FLAGS}")
  if(yaml-cpp_FOUND AND NOT NARROW_MINIMAL)
    string(APPEND NARROW_PC_LIBRARIES " -lyaml-cpp")
  endif()
  if(NARROW_WITH_CUDA)
    string(APPEND NARROW_PC_LIBRARIES " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lpthread")
  endif()
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/narrow.pc.in ${PROJECT_BINARY_DIR}/narrow.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/narrow.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# `cpack --config build/release/CPackConfig.cmake`: a Debian package with the command, the library and its headers.
if(PROJECT_IS_TOP_LEVEL AND NOT SKBUILD)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_VENDOR narrow)
  set(CPACK_PACKAGE_CONTACT "The authors of narrow")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)          # what the command links, by name and version
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libyaml-cpp-dev, g++")  # to link the library
  set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)         # xz takes a minute for 2 MB less
  include(CPack)
endif()
