#pragma once
/// Mutations of a text made of pieces: the lines of a recipe, the words of a scheme. Pieces are moved, doubled, dropped, changed, and taken
/// from a list of good ones.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace narrow::fuzz {

inline std::size_t mutate_pieces(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed, char separator,
                                 std::span<const std::string_view> good) {
  if (seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  std::minstd_rand random(seed);
  const auto below = [&](std::size_t count) { return count == 0 ? std::size_t{0} : random() % count; };
  std::vector<std::string> pieces(1);
  for (std::size_t i = 0; i < size; ++i) {
    if (static_cast<char>(data[i]) == separator) {
      pieces.emplace_back();
    } else {
      pieces.back() += static_cast<char>(data[i]);
    }
  }
  const std::size_t place = below(pieces.size());
  const auto at = pieces.begin() + static_cast<std::ptrdiff_t>(place);
  switch (below(5)) {
    case 0: std::swap(pieces[place], pieces[below(pieces.size())]); break;
    case 1: pieces.insert(at, pieces[below(pieces.size())]); break;
    case 2:
      if (pieces.size() > 1) pieces.erase(at);
      break;
    case 3:
      if (below(2) == 0) {
        pieces.insert(at, std::string(good[below(good.size())]));
      } else {
        pieces[place] = good[below(good.size())];
      }
      break;
    default: {
      std::string piece = pieces[place];
      const std::size_t length = piece.size();
      piece.resize(length + 8);
      piece.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(piece.data()), length, piece.size()));
      pieces[place] = piece;
    }
  }
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) text += (i == 0 ? "" : std::string(1, separator)) + pieces[i];
  if (text.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace narrow::fuzz
