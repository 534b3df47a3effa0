# Makes a locale with decimal commas where the system has its sources, and runs the comparison with it.
if(LOCALEDEF AND NOT EXISTS ${LOCALES}/de_DE.UTF-8)
  file(MAKE_DIRECTORY ${LOCALES})
  execute_process(COMMAND ${LOCALEDEF} -i de_DE -f UTF-8 ${LOCALES}/de_DE.UTF-8 OUTPUT_QUIET ERROR_QUIET)
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E env LOCPATH=${LOCALES} ${TEST} ${GOLDEN} ${EXAMPLES} RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "same_bytes: ${result}")
endif()
