# The fast CPU kernels. A leaf is one file, compiled for the instruction set that its name ends in; it includes the generic
# bodies (kernels/cpu/*.inl) inside its own namespace, so that no code of a newer set can be picked for an older CPU.
# Other files of kernels/cpu/<architecture> (the tables) are compiled for the plain architecture.
if(NOT NARROW_CPU_KERNELS)
  set(architecture none)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(architecture x86)
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avxvnni ${flags_avx2} -mavxvnni)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mavx512vbmi2 -mavx512vpopcntdq
    -mavx512bitalg -mprefer-vector-width=512)
  set(flags_avx512bf16 ${flags_avx512} -mavx512bf16)
  set(flags_amx ${flags_avx512} -mamx-tile -mamx-int8)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(architecture arm)
  set(flags_neon)
  set(flags_dotprod -march=armv8.2-a+dotprod+fp16)
  set(flags_i8mm -march=armv8.2-a+dotprod+fp16+i8mm)
else()
  message(STATUS "CPU kernels: the reference alone; add kernels/cpu/<architecture>/*_table.cc for ${CMAKE_SYSTEM_PROCESSOR}")
  set(architecture none)
endif()

file(GLOB leaves CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cpu/${architecture}/*.cc)
foreach(leaf ${leaves})
  target_sources(narrow PRIVATE ${leaf})
  # The products' leaves are unrolled so far that the sanitizers would compile them for many minutes; their tests have guard bytes.
  set(unsanitized)
  if(NARROW_SANITIZE AND NOT NARROW_SANITIZE_KERNELS AND leaf MATCHES "/(matmul|fused)_")
    set(unsanitized -fno-sanitize=all -O0 -g0)
  elseif(NARROW_SANITIZE AND leaf MATCHES "/matmul_(avx2|avxvnni|avx512|avx512bf16|amx)")
    set(unsanitized -fno-sanitize=all)
  endif()
  if(leaf MATCHES "_(avx2|avxvnni|avx512|avx512bf16|amx|neon|dotprod|i8mm)\\.cc$")
    # -Wno-psabi: vector types stay inside a leaf, their calling convention concerns nobody.
    # -Wno-maybe-uninitialized: g++'s own AVX-512 intrinsics leave their merge operand undefined.
    # -O3: a small build saves outside of the kernels.
    set_source_files_properties(${leaf} PROPERTIES
      COMPILE_OPTIONS "${flags_${CMAKE_MATCH_1}};-Wno-psabi;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>;$<$<CONFIG:MinSizeRel>:-O3>;\
${unsanitized}")
  endif()
endforeach()
