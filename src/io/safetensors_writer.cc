#include "io/safetensors_writer.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/safetensors_header.h"
#include "io/text.h"
#include "narrow/error.h"

namespace narrow::io {
namespace {

void check_name(const std::string& name) {
  if (name.empty() || name == "__metadata__" || name.find('\0') != std::string::npos || !is_utf8(name))
    throw InvalidArgument(
        fmt::format("safetensors: {} cannot be a tensor's name; use UTF-8 without NUL, not empty, not __metadata__", in_quotes(name)));
}

/// As serde_json escapes: short forms, \u00xx for other controls, everything else as it is.
std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

SafetensorsLayout layout_safetensors(std::vector<TensorInfo> tensors, const Metadata& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name; });
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (!is_utf8(key) || !is_utf8(value)) throw InvalidArgument(fmt::format("safetensors: the metadata {} is not UTF-8", in_quotes(key)));
      json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", json_string(key), json_string(value));
    }
    json += "}";
  }
  std::uint64_t offset = 0;
  for (TensorInfo& info : tensors) {
    check_name(info.name);
    const std::uint64_t bits = static_cast<std::uint64_t>(element_count(info.shape)) * static_cast<std::uint64_t>(bits_of(info.dtype));
    if (bits % 8 != 0)
      throw InvalidArgument(fmt::format("safetensors: tensor {} of {} {} does not fill whole bytes", in_quotes(info.name),
                                        name_of(info.dtype), to_string(info.shape)));
    info.begin = offset;
    info.end = offset += bits / 8;
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", json.size() == 1 ? "" : ",",
                        json_string(info.name), name_of(info.dtype), fmt::join(info.shape, ","), info.begin, info.end);
  }
  json += "}";
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kLargestHeader)
    throw InvalidArgument(
        fmt::format("safetensors: a header of {} bytes is beyond the limit of {}; use more files", json.size(), kLargestHeader));
  std::string header(kLengthBytes, '\0');
  for (std::size_t i = 0; i < kLengthBytes; ++i) header[i] = static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i) & 0xFFu);
  header += json;
  for (TensorInfo& info : tensors) {
    info.begin += header.size();
    info.end += header.size();
  }
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i].name == tensors[i - 1].name)
      throw InvalidArgument(fmt::format("safetensors: tensor {} is there twice", in_quotes(tensors[i].name)));
  const std::uint64_t file_bytes = header.size() + offset;
  return {std::move(tensors), std::move(header), file_bytes};
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, SafetensorsLayout layout)
    : layout_(std::move(layout)), file_(path) {
  for (const TensorInfo& info : layout_.tensors)
    if (!parts_.emplace(info.name, Part{.info = &info}).second)
      throw InvalidArgument(fmt::format("safetensors: tensor {} is there twice", in_quotes(info.name)));
  file_.write(0, std::as_bytes(std::span(layout_.header)));
}

SafetensorsWriter::Part& SafetensorsWriter::find(std::string_view name) {
  const auto part = parts_.find(name);
  if (part == parts_.end()) throw InvalidArgument(fmt::format("safetensors: tensor {} is not in the layout of the file", in_quotes(name)));
  return part->second;
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  Part& part = find(name);
  if (bytes.size() > part.info->byte_size() - part.written)
    throw InvalidArgument(fmt::format("safetensors: tensor {} takes {} bytes and is given more", in_quotes(name), part.info->byte_size()));
  file_.write(part.info->begin + part.written, bytes);
  part.hasher.add(bytes);
  part.written += bytes.size();
}

void SafetensorsWriter::commit(Names names) {
  for (const auto& [name, part] : parts_)
    if (part.written != part.info->byte_size())
      throw InvalidArgument(
          fmt::format("safetensors: tensor {} takes {} bytes and was given {}", in_quotes(name), part.info->byte_size(), part.written));
  file_.commit(names);
}

}  // namespace narrow::io

namespace narrow {

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.device().is_cpu())
      throw InvalidArgument(fmt::format("safetensors: tensor {} is not in the CPU's memory; copy it there first", io::in_quotes(name)));
    infos.push_back({.name = name, .dtype = tensor.dtype(), .shape = tensor.shape()});
  }
  io::SafetensorsWriter writer(path, io::layout_safetensors(std::move(infos), metadata));
  for (const TensorInfo& info : writer.layout().tensors) {
    const Tensor tensor = tensors.at(info.name).contiguous();
    writer.append(info.name, {tensor.data(), tensor.byte_size()});
  }
  writer.commit();
}

}  // namespace narrow
