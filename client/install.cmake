# SPDX-License-Identifier: Apache-2.0
# `cmake --install build` of libassay: library, header, find_package(assay) and pkg-config assay.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

target_include_directories(assay_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                           $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/client>)
set_target_properties(assay_shared PROPERTIES EXPORT_NAME assay)
install(TARGETS assay_shared EXPORT assay LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libassay)
install(FILES client/assay.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libassay)
install(EXPORT assay NAMESPACE assay:: FILE assayTargets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/assay COMPONENT libassay)
file(WRITE ${CMAKE_BINARY_DIR}/assayConfig.cmake "include(\${CMAKE_CURRENT_LIST_DIR}/assayTargets.cmake)\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/assayConfigVersion.cmake VERSION ${PROJECT_VERSION}
                                 COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH pc_include /${CMAKE_INSTALL_LIBDIR}/pkgconfig /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(client/assay.pc.in ${CMAKE_BINARY_DIR}/assay.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/assayConfig.cmake ${CMAKE_BINARY_DIR}/assayConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/assay COMPONENT libassay)
install(FILES ${CMAKE_BINARY_DIR}/assay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libassay)
