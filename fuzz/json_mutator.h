#pragma once
/// Mutations that keep a JSON document a JSON document: a reader's own checks are reached, which random bytes seldom pass the parser for.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace narrow::fuzz {

class JsonMutator {
 public:
  using Json = nlohmann::ordered_json;

  JsonMutator(unsigned seed, std::size_t most) : random_(seed), most_(most) {}

  /// The text with one or two nodes changed; empty where it is no JSON to begin with.
  std::string mutated(const char* text, std::size_t size, int indent) {
    Json document = Json::parse(text, text + size, nullptr, false);
    if (document.is_discarded()) return {};
    for (unsigned changes = 1 + below(2); changes > 0; --changes) change(document);
    return printed(document, indent);
  }

 private:
  /// Texts that mutation has made no UTF-8 are printed all the same.
  static std::string printed(const Json& document, int indent) { return document.dump(indent, ' ', false, Json::error_handler_t::replace); }

  unsigned below(std::size_t count) { return count == 0 ? 0 : static_cast<unsigned>(random_() % count); }

  void collect(Json& node, std::vector<Json*>& nodes) {
    constexpr std::size_t kMostNodes = 4096;
    if (nodes.size() >= kMostNodes) return;
    nodes.push_back(&node);
    if (node.is_structured())
      for (Json& child : node) collect(child, nodes);
  }

  Json interesting() {
    const Json values[] = {nullptr,
                           true,
                           false,
                           0,
                           1,
                           -1,
                           2,
                           3,
                           4,
                           7,
                           8,
                           16,
                           32,
                           127,
                           128,
                           255,
                           256,
                           2147483647,
                           2147483648,
                           4294967296,
                           9007199254740993,
                           INT64_MAX,
                           INT64_MIN,
                           UINT64_MAX,
                           0.5,
                           -0.0,
                           1e308,
                           1e-320,
                           "",
                           "..",
                           "/",
                           "a",
                           "re:.*",
                           "\u00e9",
                           Json::array(),
                           Json::object()};
    return values[below(std::size(values))];
  }

  std::string text(std::string value) {
    const std::size_t size = value.size();
    value.resize(size + 16);
    value.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(value.data()), size, value.size()));
    return value;
  }

  void change(Json& document) {
    std::vector<Json*> nodes;
    collect(document, nodes);
    Json& node = *nodes[below(nodes.size())];
    const Json other = *nodes[below(nodes.size())];
    switch (below(8)) {
      case 0:
        node = printed(other, -1).size() < most_ / 4 ? other : interesting();
        return;
      case 1:
        node = interesting();
        return;
      case 2:
        if (node.is_array() && !node.empty()) node.erase(below(node.size()));
        if (node.is_object() && !node.empty()) node.erase(std::next(node.begin(), below(node.size())));
        return;
      case 3:
        if (node.is_array())
          node.insert(node.begin() + below(node.size() + 1), node.empty() ? interesting() : Json(node[below(node.size())]));
        if (node.is_object()) node[node.empty() ? "x" : text(std::next(node.begin(), below(node.size())).key())] = other;
        return;
      case 4:
        if (node.is_object() && !node.empty()) {
          const auto place = std::next(node.begin(), below(node.size()));
          const Json value = *place;
          node.erase(place);
          if (other.is_object() && !other.empty()) node[std::next(other.begin(), below(other.size())).key()] = value;
        }
        return;
      case 5:
        if (node.is_number_integer()) {
          const std::uint64_t step = std::uint64_t{1} << below(12);
          node = static_cast<std::int64_t>(node.get<std::uint64_t>() + (below(2) == 0 ? step : ~step + 1));  // wraps
        }
        return;
      case 6:
        if (node.is_array() && node.size() < 64) node.insert(node.end(), below(64), interesting());
        return;
      default:
        if (node.is_string()) node = text(node.get<std::string>());
    }
  }

  std::mt19937 random_;
  std::size_t most_;
};

/// Every fourth mutation is of bytes, so that what is no JSON is seen too.
inline std::size_t mutate_json(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed, int indent = -1,
                               const char* end = "") {
  if (seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  std::string text = JsonMutator(seed, most).mutated(reinterpret_cast<const char*>(data), size, indent);
  if (!text.empty()) text += end;
  if (text.empty() || text.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace narrow::fuzz
