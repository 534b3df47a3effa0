# The CUDA half of the device layer and the GPU kernels, or the stub in their place.
target_sources(narrow PRIVATE ops/cuda_binary.cc ops/cuda_binary_conv.cc ops/cuda_fused.cc ops/cuda_int4_matmul.cc ops/cuda_int8_matmul.cc
  ops/cuda_matmul.cc ops/cuda_msfp.cc ops/cuda_quantize.cc ops/cuda_training.cc ops/cuda_weights.cc ops/tuned_kernels.cc)
if(NOT NARROW_WITH_CUDA)
  target_sources(narrow PRIVATE device/cuda_stub.cc kernels/cuda_stub.cc kernels/cuda_binary_stub.cc kernels/cuda_decoder_stub.cc
    kernels/cuda_fused_stub.cc kernels/cuda_gptq_stub.cc kernels/cuda_matmul_stub.cc kernels/cuda_msfp_stub.cc kernels/cuda_weights_stub.cc)
  return()
endif()
target_sources(narrow PRIVATE
  device/cuda/runtime.cc
  kernels/cuda/bit_conv.cu
  kernels/cuda/bit_conv_prepare.cu
  kernels/cuda/bit_prepare.cu
  kernels/cuda/bit_product_any.cu
  kernels/cuda/dequantize.cu
  kernels/cuda/dequantize_generic.cu
  kernels/cuda/elementwise.cu
  kernels/cuda/byte_prepare.cu
  kernels/cuda/fp8_product_any.cu
  kernels/cuda/fp8_product_mma.cu
  kernels/cuda/fused_generic.cu
  kernels/cuda/fused_rows_bf16.cu
  kernels/cuda/fused_rows_f16.cu
  kernels/cuda/fused_rows_f32.cu
  kernels/cuda/fused_tables.cu
  kernels/cuda/int4_few_rows.cu
  kernels/cuda/int4_plan.cc
  kernels/cuda/int4_prepare.cu
  kernels/cuda/int4_product_any.cu
  kernels/cuda/int4_product_mma.cu
  kernels/cuda/gptq/columns.cu
  kernels/cuda/gptq/factor.cu
  kernels/cuda/gptq/products.cu
  kernels/cuda/gptq/refine.cu
  kernels/cuda/gptq/scales.cu
  kernels/cuda/gptq/solver.cc
  kernels/cuda/int8_product_any.cu
  kernels/cuda/int8_product_mma.cu
  kernels/cuda/layout.cu
  kernels/cuda/library_product.cc
  kernels/cuda/msfp_prepare.cu
  kernels/cuda/msfp_product_any.cu
  kernels/cuda/quantize_blocks.cu
  kernels/cuda/quantize_generic.cu
  kernels/cuda/quantize_resident.cu
  kernels/cuda/quantize_rows.cu
  kernels/cuda/quantize_tensor.cu
  kernels/cuda/sm90/bit_plan.cc
  kernels/cuda/sm90/byte_plan.cc
  kernels/cuda/tables.cc
  kernels/cuda/sm90/weight_plan.cc
  kernels/cuda/training.cu
  kernels/cuda/weight_prepare.cu
  kernels/cuda/weight_product_any.cu)
# Device code is packed in the file, which changes no instruction of it; the driver unpacks a kernel when it is first used.
set(packed -Xfatbin=-compress-all)
# Codes must be the CPU's: no contraction, IEEE divisions and square roots, subnormals kept (nvcc's defaults but for the first).
target_compile_options(narrow PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:${packed} --expt-relaxed-constexpr -fmad=false -Xcompiler=-Wall,-Wextra -Xcudafe=--diag_suppress=20012>)
# The runtime is linked in: a machine without CUDA loads the library all the same.
target_link_libraries(narrow PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})

# Hopper's own kernels: one target (wgmma and setmaxnreg exist in sm_90a alone), fp8 products in the compiler's own contraction.
add_library(narrow_sm90 OBJECT
  kernels/cuda/decoder/attend_exact.cu
  kernels/cuda/decoder/attend_rows.cu
  kernels/cuda/decoder/attend_rows_mma.cu
  kernels/cuda/decoder/attend_tiles.cu
  kernels/cuda/decoder/exact_product.cu
  kernels/cuda/decoder/experts.cu
  kernels/cuda/decoder/measure.cu
  kernels/cuda/decoder/place_heads.cu
  kernels/cuda/decoder/sample.cu
  kernels/cuda/decoder/score.cu
  kernels/cuda/decoder/split.cu
  kernels/cuda/decoder/stream.cu
  kernels/cuda/sm90/bit_launch.cu
  kernels/cuda/sm90/byte_launch.cu
  kernels/cuda/sm90/few_rows.cu
  kernels/cuda/sm90/fp8_other.cu
  kernels/cuda/sm90/fp8_tile_scaled.cu
  kernels/cuda/sm90/fp8_tile_scaled_small.cu
  kernels/cuda/sm90/int4_product.cu
  kernels/cuda/sm90/int8.cu
  kernels/cuda/sm90/msfp_launch.cu
  kernels/cuda/sm90/step_dense.cu
  kernels/cuda/sm90/step_floats.cu
  kernels/cuda/sm90/step_floats_wide.cu
  kernels/cuda/sm90/step_integers.cu
  kernels/cuda/sm90/step_integers_wide.cu
  kernels/cuda/sm90/step_launch.cu
  kernels/cuda/sm90/weight_instances/any_fp4.cu
  kernels/cuda/sm90/weight_instances/any_fp5.cu
  kernels/cuda/sm90/weight_instances/any_fp6.cu
  kernels/cuda/sm90/weight_instances/any_fp8.cu
  kernels/cuda/sm90/weight_instances/dense.cu
  kernels/cuda/sm90/weight_instances/fp3.cu
  kernels/cuda/sm90/weight_instances/fp4.cu
  kernels/cuda/sm90/weight_instances/fp5.cu
  kernels/cuda/sm90/weight_instances/fp6.cu
  kernels/cuda/sm90/weight_instances/fp8.cu
  kernels/cuda/sm90/weight_instances/int2.cu
  kernels/cuda/sm90/weight_instances/int3.cu
  kernels/cuda/sm90/weight_instances/int4.cu
  kernels/cuda/sm90/weight_instances/int8.cu
  kernels/cuda/sm90/weight_launch.cu)
set_target_properties(narrow_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
target_include_directories(narrow_sm90 PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_options(narrow_sm90 PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:${packed} --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra -Xcudafe=--diag_suppress=20012>)
# 128x64 is 1 to 4 % faster so, the large tiles are not.
set_source_files_properties(kernels/cuda/sm90/fp8_tile_scaled_small.cu PROPERTIES COMPILE_OPTIONS "-Xptxas;--register-usage-level=10")
target_sources(narrow PRIVATE $<TARGET_OBJECTS:narrow_sm90>)
