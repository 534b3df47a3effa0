// resave IN.safetensors OUT.safetensors: reads a file and writes it again with narrow's writer, for comparison with others.
#include <cstdio>
#include <exception>

#include "narrow/checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: resave IN.safetensors OUT.safetensors\n", stderr);
    return 2;
  }
  try {
    const narrow::Checkpoint input = narrow::open_checkpoint(argv[1]);
    std::map<std::string, narrow::Tensor> tensors;
    for (const narrow::TensorInfo& info : input.stored()) tensors.emplace(info.name, input.read_stored(info.name));
    narrow::write_safetensors(argv[2], tensors, input.metadata(input.tensor_files().front()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resave: %s\n", error.what());
    return 1;
  }
  return 0;
}
