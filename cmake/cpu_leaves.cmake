# The fast CPU kernels: each leaf is one file, compiled for one instruction set. A leaf includes the generic bodies
# (kernels/cpu/*.inl) inside its own namespace, so that no code of a newer set can be picked for an older CPU.
function(narrow_cpu_leaf source)
  target_sources(narrow PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()

target_sources(narrow PRIVATE kernels/cpu/quantize/plan.cc)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 -mavx2 -mfma -mf16c -mbmi2 -Wno-psabi)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mavx512vbmi2 -mavx512vpopcntdq -mavx512bitalg
             -mprefer-vector-width=512)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx512 -Wno-maybe-uninitialized)  # GCC's own intrinsics leave their merge operand undefined
  endif()
  target_sources(narrow PRIVATE kernels/cpu/x86/table.cc kernels/cpu/x86/matmul_table.cc kernels/cpu/x86/fused_table.cc)
  foreach(op quantize fused)
    narrow_cpu_leaf(kernels/cpu/x86/${op}_avx2.cc ${avx2})
    narrow_cpu_leaf(kernels/cpu/x86/${op}_avx512.cc ${avx512})
  endforeach()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_sources(narrow PRIVATE kernels/cpu/arm/table.cc kernels/cpu/arm/matmul_table.cc kernels/cpu/arm/fused_table.cc)
  foreach(op quantize fused)
    narrow_cpu_leaf(kernels/cpu/arm/${op}_neon.cc -Wno-psabi)
  endforeach()
else()
  message(FATAL_ERROR "narrow has CPU tables for x86_64 and aarch64; add kernels/cpu/<arch>/table.cc for ${CMAKE_SYSTEM_PROCESSOR}")
endif()
