# The CUDA half of the device layer and the GPU kernels, or the stub in their place.
if(NOT NARROW_WITH_CUDA)
  target_sources(narrow PRIVATE device/cuda_stub.cc)
  return()
endif()
target_sources(narrow PRIVATE device/cuda_stub.cc)
