# -DNARROW_MINIMAL=ON: a shared library for small devices, of the C interface without checkpoints. Quantizing, dequantizing and the products of int8 and
# int4 weights with int8 activations are fast; every other scheme runs on the reference. tools/dev/test_edge.sh checks its size.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(table kernels/cpu/minimal/table_x86.cc)
  set(leaves kernels/cpu/minimal/matmul_avx2.cc kernels/cpu/x86/quantize_avx2.cc)
  set(leaf_flags -mavx2 -mfma -mf16c -mbmi2 -fno-exceptions -fno-asynchronous-unwind-tables)  # kernels throw nothing: no tables for that
else()
  set(table kernels/cpu/minimal/table_arm.cc)
  set(leaves kernels/cpu/minimal/matmul_dotprod.cc kernels/cpu/arm/quantize_neon.cc)
  set(leaf_flags)
  set_source_files_properties(kernels/cpu/minimal/matmul_dotprod.cc PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod+fp16;-Wno-psabi")
endif()
if(leaf_flags)
  set_source_files_properties(${leaves} PROPERTIES COMPILE_OPTIONS "${leaf_flags};-Wno-psabi;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
endif()

add_library(narrow SHARED
  format/format.cc
  format/quoted.cc
  format/scheme.cc
  device/cpu_features.cc
  device/cuda_stub.cc
  device/memory.cc
  tensor/dtype.cc
  tensor/tensor.cc
  kernels/reference/dequantize.cc
  kernels/reference/matmul.cc
  kernels/reference/quantize.cc
  kernels/cpu/matmul_rows.cc
  kernels/cpu/matmul_float_task.cc
  kernels/cpu/matmul_integer_task.cc
  kernels/cpu/quantize/plan.cc
  ${leaves}
  ${table}
  dispatch/matmul.cc
  dispatch/quantize.cc
  ops/matmul.cc
  ops/prepare.cc
  ops/quantize.cc
  ops/tiles.cc
  c_api/c_api.cc)
add_library(narrow::narrow ALIAS narrow)
set_source_files_properties(c_api/c_api.cc PROPERTIES COMPILE_DEFINITIONS NARROW_VERSION="${PROJECT_VERSION}")
target_compile_options(narrow PRIVATE -Os -ffunction-sections -fdata-sections)
target_link_options(narrow PRIVATE LINKER:--gc-sections,--no-undefined,--version-script=${PROJECT_SOURCE_DIR}/cmake/narrow_minimal.map
  LINKER:-z,noseparate-code)  # no page of padding around the code
target_sources(narrow PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${PROJECT_SOURCE_DIR}/include/narrow/c.h)
target_include_directories(narrow PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_features(narrow PRIVATE cxx_std_20)
target_link_libraries(narrow PRIVATE OpenMP::OpenMP_CXX $<BUILD_INTERFACE:narrow_headers> $<BUILD_INTERFACE:narrow_flags>)
set_target_properties(narrow PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
