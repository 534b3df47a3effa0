// outlier_model IN OUT: writes the outlier variant of a model, for measurements.
#include "methods/outlier_model.h"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("usage: outlier_model IN OUT\n", stderr), 2;
  try {
    narrow::test::write_outlier_model(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outlier_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
