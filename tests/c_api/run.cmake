# Runs the test in an empty folder.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND ${TEST} ${FOLDER} ${MODEL} RESULT_VARIABLE result)
file(REMOVE_RECURSE ${FOLDER})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "c_api_test: ${result}")
endif()
