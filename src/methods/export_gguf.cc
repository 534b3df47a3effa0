/// export_gguf: a Llama checkpoint as one GGUF file, with the metadata and the tokenizer that llama.cpp needs.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "io/atomic_file.h"
#include "io/file_reader.h"
#include "io/gguf_codes.h"
#include "io/gguf_file.h"
#include "io/hash.h"
#include "io/text.h"
#include "methods/gguf_llama.h"
#include "methods/preflight.h"
#include "methods/recipe_match.h"
#include "narrow/error.h"
#include "narrow/interop.h"

namespace narrow {
namespace {

namespace fs = std::filesystem;

/// The type itself, or the one that llama.cpp takes where rows are no whole blocks of 256.
const io::GgmlTypeInfo& fitting(const io::GgmlTypeInfo& type, std::int64_t cols) {
  if (cols % type.values == 0) return type;
  if (type.type == io::GgmlType::kQ4K) return fitting(io::ggml_type(io::GgmlType::kQ5_0), cols);
  if (type.type == io::GgmlType::kQ6K) return fitting(io::ggml_type(io::GgmlType::kQ8_0), cols);
  return io::ggml_type(io::GgmlType::kF16);
}

const io::GgmlTypeInfo& same_type(DType dtype) {
  return io::ggml_type(dtype == DType::kF16 ? io::GgmlType::kF16 : dtype == DType::kBf16 ? io::GgmlType::kBf16 : io::GgmlType::kF32);
}

/// In ggml's order: bytes of rows that lie one after the other.
void rotate_rows(std::span<const std::byte> from, std::span<std::byte> to, std::int64_t rows, std::int64_t dimension) {
  const std::size_t row_bytes = from.size() / static_cast<std::size_t>(rows);
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(to.data() + static_cast<std::size_t>(row) * row_bytes,
                from.data() + static_cast<std::size_t>(huggingface_row(row, dimension)) * row_bytes, row_bytes);
}

Buffer rotated(const Buffer& buffer, std::int64_t rows, std::int64_t dimension) {
  Buffer result = Buffer::allocate(buffer.size());
  rotate_rows(buffer.bytes(), {result.data(), result.size()}, rows, dimension);
  return result;
}

struct Item {
  std::string source;
  io::GgufTensor tensor;
  bool is_exact = false;  ///< the source's codes go into the blocks as they are
};

class Export {
 public:
  /// Without a type: the one that holds the codes of a quantized weight, and q8_0 for others.
  Export(const Checkpoint& input, const io::GgmlTypeInfo* type) : input_(input) {
    LlamaMetadata metadata = metadata_of(input, type != nullptr ? *type : prevailing_type());
    heads_ = metadata.heads;
    for (const std::string& name : input.names()) {
      const std::string target = gguf_name(name);
      const Shape shape = input.shape(name);
      if (target.empty() || !is_floating(input.dtype(name)))
        throw Unsupported(fmt::format("gguf: tensor {} has no name there", io::in_quotes(name)));
      const bool is_quantized = is_linear_weight(name, shape) && name != "lm_head.weight";
      const io::GgmlTypeInfo* holder = holder_of(name);
      // ggml's norms and biases are fp32; embeddings and the head stay as they are.
      const io::GgmlTypeInfo& own = shape.size() < 2                       ? io::ggml_type(io::GgmlType::kF32)
                                    : type == nullptr && holder != nullptr ? *holder
                                    : is_quantized ? fitting(type != nullptr ? *type : io::ggml_type(io::GgmlType::kQ8_0), shape.back())
                                                   : same_type(input.dtype(name));
      items_.push_back({name, {target, shape, &own}, holder == &own});
      check_heads(items_.back());
    }
    std::vector<io::GgufTensor> tensors;
    for (const Item& item : items_) tensors.push_back(item.tensor);
    header_ = io::layout_gguf(std::move(metadata.pairs), std::move(tensors));
  }

  const io::GgufHeader& header() const { return header_; }

  GgufReport write(const fs::path& output, const ProgressCallback& progress) {
    const auto begin = std::chrono::steady_clock::now();
    GgufReport report;
    report.bytes = header_.file_bytes;
    io::AtomicFile file(output);
    file.write(0, std::as_bytes(std::span(header_.text)));
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const io::GgufTensor& tensor = header_.tensors[i];
      std::vector<std::uint8_t> blocks = encoded(i);
      hashes_.push_back(io::hash_of(std::as_bytes(std::span(blocks))));
      blocks.resize((blocks.size() + io::kGgufAlignment - 1) / io::kGgufAlignment * io::kGgufAlignment);
      file.write(tensor.begin, std::as_bytes(std::span(blocks)));
      if (progress) progress({items_[i].source, Stage::kWritten, false, tensor.begin + tensor.bytes, 2 * header_.file_bytes, {}});
    }
    read_back(file.place(), report, progress);
    file.commit();
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return report;
  }

 private:
  /// The block type that holds the codes of a tensor as it is quantized; nothing for a plain one.
  const io::GgmlTypeInfo* holder_of(const std::string& name) const {
    const std::optional<QuantizedInfo> info = input_.quantized_info(name);
    const io::GgmlTypeInfo* type = info ? io::blocks_of_scheme(info->scheme) : nullptr;
    return type != nullptr && info->shape.size() == 2 && info->shape.back() % type->values == 0 ? type : nullptr;
  }

  /// Of the first weight that has one; what the file is called by.
  const io::GgmlTypeInfo& prevailing_type() const {
    for (const std::string& name : input_.names())
      if (const io::GgmlTypeInfo* type = holder_of(name)) return *type;
    return io::ggml_type(io::GgmlType::kQ8_0);
  }

  void check_heads(const Item& item) const {
    const std::int64_t heads = heads_.of(item.tensor.name);
    const std::int64_t rows = item.tensor.shape.empty() ? 0 : item.tensor.shape.front();
    if (heads > 0 && (heads_.dimension % 2 != 0 || rows != heads * heads_.dimension))
      throw CorruptFile(fmt::format("{}: tensor {} has {} rows, not {} heads of {}", input_.directory().string(),
                                    io::in_quotes(item.source), rows, heads, heads_.dimension));
  }

  Tensor values(std::size_t index) const {
    const Item& item = items_[index];
    const Tensor x =
        input_.quantized_info(item.source) ? dequantize(input_.quantized(item.source)) : convert(input_.tensor(item.source), DType::kF32);
    if (heads_.of(item.tensor.name) == 0) return x;
    const Tensor y = Tensor::empty(DType::kF32, x.shape());
    rotate_rows({x.data(), x.byte_size()}, {y.data(), y.byte_size()}, x.shape().front(), heads_.dimension);
    return y;
  }

  QuantizedTensor codes(const Item& item) const {
    QuantizedTensor q = input_.quantized(item.source);
    if (heads_.of(item.tensor.name) == 0) return q;
    q.codes = rotated(q.codes, q.shape.front(), heads_.dimension);
    q.scales = rotated(q.scales, q.shape.front(), heads_.dimension);
    return q;
  }

  std::vector<std::uint8_t> encoded(std::size_t index) {
    const io::GgmlTypeInfo& type = *header_.tensors[index].type;
    std::vector<std::uint8_t> blocks(static_cast<std::size_t>(header_.tensors[index].bytes));
    const Tensor x = values(index);
    source_hashes_.push_back(io::hash_of({x.data(), x.byte_size()}));
    if (items_[index].is_exact) {
      io::put_blocks(codes(items_[index]), type, blocks);
      return blocks;
    }
    const float* first = x.as<float>();
    const float* end = first + x.size();
    if (!std::all_of(first, end, [](float value) { return std::isfinite(value); }))
      throw InvalidArgument(fmt::format("gguf: tensor {} has values that are not finite", io::in_quotes(items_[index].source)));
    io::encode_blocks(type, {first, end}, blocks);
    return blocks;
  }

  /// Before the file takes its name: what the disk gives back is what was written, and the source is what it was then.
  void read_back(const fs::path& output, GgufReport& report, const ProgressCallback& progress) const {
    const io::FileReader file(output);
    const io::GgufHeader read = io::read_gguf(file);
    if (read.tensors.size() != items_.size() || file.size() != header_.file_bytes)
      throw CorruptFile(fmt::format("{}: it is not what was written to it", output.string()));
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const io::GgufTensor& tensor = read.tensors[i];
      std::vector<std::uint8_t> blocks(static_cast<std::size_t>(tensor.bytes));
      file.read(tensor.begin, std::as_writable_bytes(std::span(blocks)));
      if (tensor.name != header_.tensors[i].name || io::hash_of(std::as_bytes(std::span(blocks))) != hashes_[i])
        throw CorruptFile(
            fmt::format("{}: tensor {} reads back different from what was written", output.string(), io::in_quotes(tensor.name)));
      const Tensor y = Tensor::empty(DType::kF32, tensor.shape);
      io::decode_blocks(*tensor.type, blocks, {y.as<float>(), static_cast<std::size_t>(y.size())});
      const Tensor x = values(i);
      if (io::hash_of({x.data(), x.byte_size()}) != source_hashes_[i])
        throw CorruptFile(fmt::format("{}: tensor {} changed while it was read; convert a copy that nobody writes to",
                                      input_.directory().string(), io::in_quotes(items_[i].source)));
      report.tensors.push_back({tensor.name, std::string(tensor.type->name), items_[i].is_exact, compare(x, y)});
      if (progress)
        progress({items_[i].source, Stage::kVerified, false, header_.file_bytes + tensor.begin + tensor.bytes, 2 * header_.file_bytes,
                  report.tensors.back().error});
    }
  }

  const Checkpoint& input_;
  AttentionHeads heads_;
  std::vector<Item> items_;
  io::GgufHeader header_;
  std::vector<std::string> hashes_, source_hashes_;  ///< of what was written, and of the values it was made from
};

}  // namespace

GgufReport export_gguf(const fs::path& input, const fs::path& output, std::string_view type, const ProgressCallback& progress) {
  const Checkpoint checkpoint = open_checkpoint(input);
  Export run(checkpoint, type.empty() ? nullptr : &io::parse_ggml_type(type));
  check_output_place(input, output, run.header().file_bytes);
  return run.write(output, progress);
}

GgufReport export_gguf(const fs::path& input, const fs::path& output, const Recipe& recipe, std::string_view type,
                       const ProgressCallback& progress) {
  if (!type.empty()) io::parse_ggml_type(type);
  check_output_place(input, output, 0);
  const io::AtomicDirectory between(output.string() + ".to-gguf");  // gone again in the end
  quantize_checkpoint(input, between.place() / "own", recipe);
  return export_gguf(between.place() / "own", output, type, progress);
}

}  // namespace narrow
