# `cmake --install`: the library, its headers, the command, and the package for find_package(narrow).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS narrow EXPORT narrow_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(NARROW_BUILD_TOOLS)
  install(TARGETS narrow_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(EXPORT narrow_targets NAMESPACE narrow:: FILE narrow-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/narrow)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/narrow-config.cmake.in ${PROJECT_BINARY_DIR}/narrow-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/narrow)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/narrow-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/narrow-config.cmake ${PROJECT_BINARY_DIR}/narrow-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/narrow)
