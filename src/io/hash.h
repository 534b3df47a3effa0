#pragma once
/// XXH3, 64 bits, as 16 hexadecimal digits: the hash of every tensor, header and side file of narrow's checkpoints.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace narrow::io {

/// Hashes bytes that arrive in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  ~Hasher();
  void add(std::span<const std::byte> bytes);
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_of(std::span<const std::byte> bytes);
inline std::string hash_of(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

}  // namespace narrow::io
