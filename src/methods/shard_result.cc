/// Reports of shards as text: {"manifest": the files' own manifest, "signal", "noise", "tensors": [...]}.

#include <limits>

#include <fmt/format.h>

#include "io/json.h"
#include "methods/shard.h"
#include "narrow/error.h"

namespace narrow {
namespace {

/// JSON has no infinity; what is infinite here is a ratio to an error of zero.
double number_at(const io::Json& json, const char* key) {
  const io::Json& value = json.at(key);
  return value.is_null() ? std::numeric_limits<double>::infinity() : value.get<double>();
}

io::Json tensor_json(const TensorResult& tensor) {
  const ErrorMetrics& error = tensor.error;
  return {{"name", tensor.name},
          {"scheme", tensor.scheme.to_string()},
          {"max_absolute", error.max_absolute},
          {"mean_absolute", error.mean_absolute},
          {"rms", error.rms},
          {"sqnr_db", error.sqnr_db},
          {"cosine", error.cosine},
          {"count", error.count},
          {"clipped", tensor.clipped},
          {"nan", tensor.source.nans},
          {"infinite", tensor.source.infinities},
          {"subnormal", tensor.source.subnormals},
          {"constant", tensor.source.is_constant},
          {"zero", tensor.source.is_zero}};
}

TensorResult parse_tensor(const io::Json& json) {
  return {json.at("name").get<std::string>(),
          Scheme::parse(json.at("scheme").get<std::string>()),
          {number_at(json, "max_absolute"), number_at(json, "mean_absolute"), number_at(json, "rms"), number_at(json, "sqnr_db"),
           number_at(json, "cosine"), io::whole_number(json, "count")},
          number_at(json, "clipped"),
          {io::whole_number(json, "nan"), io::whole_number(json, "infinite"), io::whole_number(json, "subnormal"),
           json.at("constant").get<bool>(), json.at("zero").get<bool>()}};
}

}  // namespace

std::string print_shard_result(const ShardResult& result) {
  io::Json json{{"manifest", io::print_manifest(result.manifest)}, {"signal", result.signal}, {"noise", result.noise}};
  json["tensors"] = io::Json::array();
  for (const TensorResult& tensor : result.tensors) json["tensors"].push_back(tensor_json(tensor));
  return json.dump();
}

ShardResult parse_shard_result(std::string_view text, const std::string& where) {
  const auto corrupt = [&](std::string_view why) { return CorruptFile(fmt::format("{}: {}", where, why)); };
  const io::Json json = io::parse_json(text, where);
  try {
    ShardResult result{io::parse_manifest(json.at("manifest").get<std::string>(), where)};
    result.signal = number_at(json, "signal");
    result.noise = number_at(json, "noise");
    for (const io::Json& tensor : json.at("tensors")) result.tensors.push_back(parse_tensor(tensor));
    return result;
  } catch (const nlohmann::json::exception&) {
    throw corrupt("it lacks a field, or one has another type");
  } catch (const InvalidArgument& wrong) {
    throw corrupt(wrong.what());
  }
}

}  // namespace narrow
