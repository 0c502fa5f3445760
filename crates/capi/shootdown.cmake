# include(PATH/shootdown.cmake), and then target_link_libraries(kernel shootdown). Set SHOOTDOWN_TARGET before, and
# SHOOTDOWN_OUTPUT if cargo's folder is another one.
if(NOT DEFINED SHOOTDOWN_OUTPUT)
  set(SHOOTDOWN_OUTPUT ${CMAKE_CURRENT_LIST_DIR}/../../target)
endif()
add_library(shootdown STATIC IMPORTED)
set_target_properties(shootdown PROPERTIES
  IMPORTED_LOCATION ${SHOOTDOWN_OUTPUT}/${SHOOTDOWN_TARGET}/release/libshootdown_capi.a
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}/include
  INTERFACE_LINK_OPTIONS LINKER:--gc-sections)
