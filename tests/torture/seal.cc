// seal MANIFEST...: gives edited manifests a right hash, so that a reader comes to what was edited.
#include <fstream>
#include <iterator>
#include <string>

#include "io/hash.h"

int main(int count, char** words) {
  constexpr std::size_t kHash = 16, kTail = 4;  // "\n}\n and its quote
  for (int i = 1; i < count; ++i) {
    std::ifstream in(words[i], std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.size() < kHash + kTail) return 2;
    const std::size_t place = text.size() - kTail - kHash;
    text.replace(place, kHash, kHash, '0');
    text.replace(place, kHash, narrow::io::hash_of(text));
    std::ofstream(words[i], std::ios::binary) << text;
  }
  return 0;
}
