/// Statistics of layer inputs and the scales that follow from them: the same file as `narrow calibrate` writes.

#include <filesystem>

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>

#include "array.h"
#include "narrow/calibrate.h"

namespace narrow::python {

void bind_calibration(nb::module_& module) {
  nb::class_<CalibrationStatistics>(module, "CalibrationStatistics", "What was seen of the inputs of a model's layers.")
      .def(nb::init<>())
      .def(
          "add",
          [](CalibrationStatistics& self, const std::vector<std::string>& modules, const Array& x, bool with_second_moment) {
            self.add(modules, x.tensor, with_second_moment);
          },
          nb::arg("modules"), nb::arg("x"), nb::arg("with_second_moment") = false, Unlocked())
      .def("merge", &CalibrationStatistics::merge, nb::arg("other"), Unlocked())
      .def(
          "save", [](const CalibrationStatistics& self, const std::filesystem::path& path) { self.save(path); }, nb::arg("path"),
          Unlocked())
      .def_static("load", &CalibrationStatistics::load, nb::arg("path"), Unlocked())
      .def_prop_ro("modules",
                   [](const CalibrationStatistics& self) {
                     std::vector<std::string> names;
                     for (const auto& [module_name, entry] : self.shared) names.push_back(module_name);
                     return names;
                   })
      .def(
          "shared_input",
          [](const CalibrationStatistics& self, const std::string& name) {
            static_cast<void>(self.of(name));  // says which modules there are where this one is none
            return self.shared.at(name);
          },
          nb::arg("module"), "The first of the modules that read the same input: one name for all of them.")
      .def("__repr__",
           [](const CalibrationStatistics& self) { return fmt::format("CalibrationStatistics(inputs of {} modules)", self.shared.size()); })
      .def("tokens", [](const CalibrationStatistics& self, std::string_view name) { return self.of(name).tokens; })
      .def("range",
           [](const CalibrationStatistics& self, std::string_view name) { return std::pair(self.of(name).minimum, self.of(name).maximum); })
      .def(
          "channel_max",
          [](const CalibrationStatistics& self, std::string_view name) {
            const std::vector<float>& values = self.of(name).channel_max;
            return Array{Tensor::borrow(values.data(), DType::kF32, {static_cast<std::int64_t>(values.size())}).contiguous()};
          },
          nb::keep_alive<0, 1>())
      .def(
          "second_moment",
          [](const CalibrationStatistics& self, std::string_view name) -> std::optional<Array> {
            const InputStatistics& input = self.of(name);
            if (input.second_moment.empty()) return std::nullopt;
            const std::int64_t channels = static_cast<std::int64_t>(input.channel_max.size());
            return Array{Tensor::borrow(input.second_moment.data(), DType::kF64, {channels, channels})};
          },
          nb::keep_alive<0, 1>())
      .def(
          "static_scale",
          [](const CalibrationStatistics& self, std::string_view name, const Scheme& scheme, std::string_view method) {
            const StaticScale found = static_scale(self.of(name), scheme, RangeMethod::parse(method));
            return std::pair(found.scale, int{found.zero_point});
          },
          nb::arg("module"), nb::arg("scheme"), nb::arg("method") = "minmax", Unlocked());
}

}  // namespace narrow::python
