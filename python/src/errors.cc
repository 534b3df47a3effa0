/// narrow's exceptions as Python's: the classes are defined in narrow/errors.py, so that they can also be Python's own kinds.

#include "array.h"
#include "narrow/error.h"

namespace narrow::python {
namespace {

const char* name_of_error(const Error& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return "InvalidArgument";
  if (dynamic_cast<const Unsupported*>(&error) != nullptr) return "Unsupported";
  if (dynamic_cast<const IoError*>(&error) != nullptr) return "IoError";
  if (dynamic_cast<const CorruptFile*>(&error) != nullptr) return "CorruptFile";
  if (dynamic_cast<const CudaError*>(&error) != nullptr) return "CudaError";
  return "Error";
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("narrow.errors").attr(name_of_error(error));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate, nullptr); }

}  // namespace narrow::python
