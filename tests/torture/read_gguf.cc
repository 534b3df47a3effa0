// read_gguf FILE: reads a GGUF header, which no command does; answers with the command's exit codes and sentences.
#include <cstdio>
#include <exception>

#include "io/gguf_file.h"
#include "narrow/error.h"

int main(int count, char** words) {
  if (count != 2) return 2;
  const auto fail = [](int code, const std::exception& error) {
    std::fprintf(stderr, "narrow: %s\n", error.what());
    return code;
  };
  try {
    narrow::io::read_gguf(narrow::io::FileReader(words[1]));
    return 0;
  } catch (const narrow::CorruptFile& error) {
    return fail(3, error);
  } catch (const narrow::IoError& error) {
    return fail(4, error);
  } catch (const narrow::Unsupported& error) {
    return fail(5, error);
  } catch (const std::exception& error) {
    return fail(6, error);
  }
}
