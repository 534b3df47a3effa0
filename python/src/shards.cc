/// Quantizing shard by shard: what the workers and the driver of a cluster call.

#include <filesystem>
#include <functional>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>

#include "array.h"
#include "narrow/shards.h"
#include "reports.h"

namespace narrow::python {
namespace {

using Path = std::filesystem::path;
using Moments =
    std::tuple<std::int64_t, std::optional<Array>, std::optional<Array>, std::optional<Array>>;  ///< channels and the three sums

/// The sums as arrays of their own.
std::optional<Array> array_of(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return Array{Tensor::borrow(values.data(), DType::kF64, {static_cast<std::int64_t>(values.size())}).contiguous()};
}

std::vector<double> vector_of(const std::optional<Array>& array) {
  if (!array) return {};
  const Tensor values = array->tensor.contiguous();
  return {values.as<double>(), values.as<double>() + values.size()};
}

FittedJournal journal_of(const Path& directory, const std::string& fingerprint, std::string_view method, bool act_order, double damping) {
  FittedJournal journal{directory, fingerprint, Method::parse(method)};
  journal.method.act_order = act_order;
  journal.method.damping = damping;
  return journal;
}

nb::tuple as_tuple(const FittedModule& fitted) {
  return nb::make_tuple(fitted.module, fitted.scheme.to_string(), fitted.loss_before, fitted.loss_after, fitted.fallback);
}

}  // namespace

void bind_shards(nb::module_& module) {
  module.def(
      "recipe_json",
      [](std::string_view scheme, const std::vector<std::string>& targets, const std::vector<std::string>& ignore,
         const std::vector<std::pair<std::string, std::string>>& rules) { return make_recipe(scheme, targets, ignore, rules).to_json(); },
      nb::arg("scheme"), nb::arg("targets"), nb::arg("ignore"), nb::arg("rules"));

  nb::class_<FittedJournal>(module, "FittedJournal", "Where a method's codes lie.")
      .def("__init__",
           [](FittedJournal* self, const Path& directory, const std::string& fingerprint, std::string_view method, bool act_order,
              double damping) { new (self) FittedJournal(journal_of(directory, fingerprint, method, act_order, damping)); });

  nb::class_<ShardedQuantize>(module, "ShardedQuantize", "A quantization as plan, shards and finish.")
      .def(
          "__init__",
          [](ShardedQuantize* self, const Path& input, std::string_view recipe) {
            new (self) ShardedQuantize(input, Recipe::from_json(recipe));
          },
          nb::arg("input"), nb::arg("recipe"), Unlocked())
      .def_prop_ro("fingerprint", &ShardedQuantize::fingerprint)
      .def_prop_ro("bytes_before", [](const ShardedQuantize& self) { return self.plan().bytes_before; })
      .def_prop_ro("bytes_after", [](const ShardedQuantize& self) { return self.plan().bytes_after; })
      .def_prop_ro("file_bytes", [](const ShardedQuantize& self) { return self.plan().file_bytes; })
      .def("shards",
           [](const ShardedQuantize& self) {
             std::vector<nb::tuple> shards;
             for (const Shard& shard : self.shards())
               shards.push_back(nb::make_tuple(shard.file, shard.tensors, shard.bytes_before, shard.file_bytes));
             return shards;
           })
      .def("check_output", &ShardedQuantize::check_output, nb::arg("output"), Unlocked())
      .def(
          "write",
          [](const ShardedQuantize& self, std::size_t shard, const Path& place, const std::optional<FittedJournal>& fitted,
             const std::function<void(std::string, std::uint64_t, std::uint64_t)>& progress) {
            return self.write(shard, place, fitted.value_or(FittedJournal{}), report_to(progress));
          },
          nb::arg("shard"), nb::arg("place"), nb::arg("fitted").none() = nb::none(), nb::arg("progress").none() = nb::none(), Unlocked())
      .def(
          "finish",
          [](const ShardedQuantize& self, const Path& place, const std::vector<std::string>& reports) {
            QuantizeReport report;
            {
              const nb::gil_scoped_release unlocked;
              report = self.finish(place, reports);
            }
            return as_dict(report);
          },
          nb::arg("place"), nb::arg("reports"))
      .def(
          "check_fit",
          [](const ShardedQuantize& self, const FittedJournal& journal, bool has_text) { self.check_fit(journal.method, has_text); },
          nb::arg("journal"), nb::arg("has_text"))
      .def(
          "planned",
          [](const ShardedQuantize& self, const std::optional<std::vector<std::string>>& modules) {
            return modules ? self.planned(*modules) : self.planned();
          },
          nb::arg("modules").none() = nb::none())
      .def(
          "fit",
          [](const ShardedQuantize& self, const std::string& tensor, const Moments& moments, const FittedJournal& journal) {
            FittedModule fitted;
            {
              const nb::gil_scoped_release unlocked;
              const auto& [channels, second_moment, change, missing] = moments;
              fitted = self.fit(tensor, {channels, vector_of(second_moment), vector_of(change), vector_of(missing)}, journal);
            }
            return as_tuple(fitted);
          },
          nb::arg("tensor"), nb::arg("moments"), nb::arg("journal"))
      .def(
          "walk",
          [](const ShardedQuantize& self, const std::vector<std::vector<std::int32_t>>& windows, const FittedJournal& journal,
             const std::function<void(std::vector<std::string>, std::vector<Moments>)>& visit) {
            self.walk(windows, journal, [&](std::span<const std::string> modules, const std::vector<InputMoments>& chunks) {
              const nb::gil_scoped_acquire locked;
              std::vector<Moments> sums;
              for (const InputMoments& chunk : chunks)
                sums.emplace_back(chunk.channels, array_of(chunk.second_moment), array_of(chunk.change), array_of(chunk.missing));
              visit({modules.begin(), modules.end()}, std::move(sums));
            });
          },
          nb::arg("windows"), nb::arg("journal"), nb::arg("visit"), Unlocked());
}

}  // namespace narrow::python
