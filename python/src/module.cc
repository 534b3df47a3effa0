/// narrow._core: what the Python package is made of. The package's own modules give it defaults, types and documentation.

#include "array.h"

NB_MODULE(_core, module) {
  using namespace narrow::python;
  nb::set_leak_warnings(false);  // caches of schemes live as long as the interpreter
  module.attr("version") = NARROW_VERSION;
  bind_errors(module);
  bind_array(module);
  bind_formats(module);
  bind_operations(module);
  bind_products(module);
  bind_checkpoints(module);
  bind_calibration(module);
  bind_models(module);
  bind_shards(module);
  bind_cuda(module);
}
