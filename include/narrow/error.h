#pragma once
/// The errors of narrow. Each carries one sentence: what was asked, what is allowed, what to do.

#include <stdexcept>
#include <string>

namespace narrow {

/// The base of every exception that narrow throws.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

/// The caller's arguments contradict each other or the documented contract.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The request is meaningful, but this build or this machine cannot serve it.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// The operating system refused to read or write.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A file was read and is not what it claims to be. Names the path and, where known, the offset and the tensor.
class CorruptFile : public Error {
 public:
  using Error::Error;
};

/// A CUDA call failed. Names the call and CUDA's own name for the error.
class CudaError : public Error {
 public:
  using Error::Error;
};

}  // namespace narrow
