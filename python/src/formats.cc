/// Formats and schemes.

#include <fmt/format.h>

#include "array.h"
#include "narrow/codec.h"
#include "narrow/quantize.h"
#include "narrow/recipe.h"
#include "narrow/scheme.h"

namespace narrow::python {
namespace {

std::string name_of_kind(FormatKind kind) {
  switch (kind) {
    case FormatKind::kFloat: return "float";
    case FormatKind::kInteger: return "integer";
    case FormatKind::kCodebook: return "codebook";
    case FormatKind::kExponent: return "exponent";
  }
  return "";
}

}  // namespace

void bind_formats(nb::module_& module) {
  nb::class_<Format>(module, "Format", "A number format: what one code means. It says nothing about scales or memory layout.")
      .def(
          "__init__", [](Format* self, std::string_view name) { new (self) Format(parse_format(name)); }, nb::arg("name"),
          "The format of a name: fp8_e4m3, int4, nf4, ... or any fpN_eEmM.")
      .def_prop_ro("name", [](const Format& self) { return name_of(self); })
      .def_prop_ro(
          "kind", [](const Format& self) { return name_of_kind(self.kind); }, "float, integer, codebook or exponent.")
      .def_prop_ro("bits", [](const Format& self) { return int{self.bits}; })
      .def_prop_ro("exponent_bits", [](const Format& self) { return int{self.exponent_bits}; })
      .def_prop_ro("mantissa_bits", [](const Format& self) { return int{self.mantissa_bits}; })
      .def_prop_ro("bias", [](const Format& self) { return int{self.bias}; })
      .def_prop_ro("is_signed", [](const Format& self) { return self.is_signed; })
      .def_prop_ro(
          "max_code", [](const Format& self) { return self.max_code(); }, "The code of the largest finite value.")
      .def_prop_ro(
          "largest", [](const Format& self) { return self.largest(); }, "The largest finite value.")
      .def_prop_ro("smallest_normal", [](const Format& self) { return self.smallest_normal(); })
      .def_prop_ro("smallest_positive", [](const Format& self) { return self.smallest_positive(); })
      .def(
          "encode", [](const Format& self, float x) { return encode(self, x); }, nb::arg("x"),
          "The code of a value: nearest, ties to the even code, saturating.")
      .def(
          "decode", [](const Format& self, std::uint32_t code) { return decode(self, code); }, nb::arg("code"), "The value of a code.")
      .def("__eq__", [](const Format& self, const Format& other) { return self == other; })
      .def("__eq__", [](const Format&, nb::handle) { return false; })
      .def("__hash__", [](const Format& self) { return nb::hash(nb::str(name_of(self).c_str())); })
      .def("__str__", [](const Format& self) { return name_of(self); })
      .def("__repr__", [](const Format& self) { return fmt::format("narrow.Format('{}')", name_of(self)); })
      .def("__reduce__", [](const Format& self) { return nb::make_tuple(nb::type<Format>(), nb::make_tuple(name_of(self))); });

  nb::class_<Scheme>(module, "Scheme", "A format and the scaling that goes with it, written FORMAT[:GRANULARITY][:asym][:scale=FORMAT].")
      .def(
          "__init__", [](Scheme* self, std::string_view text) { new (self) Scheme(Scheme::parse(text)); }, nb::arg("text"))
      .def(
          "__init__", [](Scheme* self, const Scheme& other) { new (self) Scheme(other); }, nb::arg("other"))
      .def_prop_ro(
          "element", [](const Scheme& self) { return self.element; }, "The format of the codes.")
      .def_prop_ro(
          "scale", [](const Scheme& self) { return self.scale; }, "The format in which scales are stored.")
      .def_prop_ro("asymmetric", [](const Scheme& self) { return self.asymmetric; })
      .def_prop_ro("has_scales", [](const Scheme& self) { return self.has_scales(); })
      .def_prop_ro("has_outer_scale", [](const Scheme& self) { return self.has_outer_scale; })
      .def_prop_ro(
          "rule",
          [](const Scheme& self) {
            if (self.rule == ScaleRule::kSharedExponent) return "shared_exponent";
            return self.rule == ScaleRule::kMeanAbsolute ? "mean_absolute" : "largest";
          },
          "How a scale follows from its values: largest, shared_exponent or mean_absolute.")
      .def(
          "row_bytes", [](const Scheme& self, std::int64_t cols) { return packed_row_bytes(self, cols); }, nb::arg("cols"),
          "Bytes of one packed row.")
      .def(
          "grid",
          [](const Scheme& self, const Shape& shape) {
            const ScaleGrid grid = scale_grid(self, shape);
            return nb::make_tuple(grid.rows, grid.cols);
          },
          nb::arg("shape"), "Rows and columns of the scale grid over a shape.")
      .def(
          "tile",
          [](const Scheme& self, const Shape& shape) {
            const ScaleGrid grid = scale_grid(self, shape);
            return nb::make_tuple(grid.tile_rows, grid.tile_cols);
          },
          nb::arg("shape"), "Rows and columns of a tensor of this shape that share one scale.")
      .def(
          "byte_size", [](const Scheme& self, const Shape& shape) { return quantized_bytes(self, shape); }, nb::arg("shape"),
          "Bytes that a tensor of this shape takes.")
      .def("__eq__", [](const Scheme& self, const Scheme& other) { return self == other; })
      .def("__eq__", [](const Scheme&, nb::handle) { return false; })
      .def("__hash__", [](const Scheme& self) { return nb::hash(nb::str(self.to_string().c_str())); })
      .def("__str__", &Scheme::to_string)
      .def("__repr__", [](const Scheme& self) { return fmt::format("narrow.Scheme('{}')", self.to_string()); })
      .def("__reduce__", [](const Scheme& self) { return nb::make_tuple(nb::type<Scheme>(), nb::make_tuple(self.to_string())); });

  module.def("format_names", [] {
    std::vector<std::string> names;
    for (const NamedFormat& format : kNamedFormats) names.emplace_back(format.name);
    return names;
  });
  module.def("scheme_names", [] {
    std::vector<std::string> names;
    for (const Scheme& scheme : standard_schemes()) names.push_back(scheme.to_string());
    return names;
  });
  module.def("presets", [] {
    std::vector<std::vector<std::string>> rows;
    for (const Preset& preset : presets())
      rows.push_back({std::string(preset.name), std::string(preset.weights), std::string(preset.activations), std::string(preset.meaning)});
    return rows;
  });
}

}  // namespace narrow::python
