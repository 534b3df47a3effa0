# The fast CPU kernels: each leaf is one file, compiled for one instruction set. A leaf includes the generic bodies
# (kernels/cpu/*.inl) inside its own namespace, so that no code of a newer set can be picked for an older CPU.
function(narrow_cpu_leaf source)
  target_sources(narrow PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ARGN}")
endfunction()

target_sources(narrow PRIVATE kernels/cpu/matmul_rows.cc kernels/cpu/matmul_task.cc)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_sources(narrow PRIVATE kernels/cpu/x86/table.cc kernels/cpu/x86/matmul_table.cc)
  set(narrow_avx512_flags -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mavx512vbmi2)
  narrow_cpu_leaf(kernels/cpu/x86/matmul_avx512.cc ${narrow_avx512_flags} -mprefer-vector-width=512)
  narrow_cpu_leaf(kernels/cpu/x86/matmul_avx2.cc -mavx2 -mfma -mf16c -mbmi2)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_sources(narrow PRIVATE kernels/cpu/arm/table.cc kernels/cpu/arm/matmul_table.cc)
else()
  message(FATAL_ERROR "narrow has CPU tables for x86_64 and aarch64; add kernels/cpu/<arch>/table.cc for ${CMAKE_SYSTEM_PROCESSOR}")
endif()
