// A library for LD_PRELOAD that makes one system call fail: the n-th of those that concern files under a folder.
//   NARROW_FAULT_UNDER  the folder; calls on other files are not counted
//   NARROW_FAULT_AT     n, from 1; 0 fails nothing
//   NARROW_FAULT_KIND   an errno by name, short (half of what was asked), kill, kill-after, cut or change (of NARROW_FAULT_VICTIM)
//   NARROW_FAULT_SIDE   write (create, mkdir, pwrite, write, fsync, ftruncate, rename, close) or read (open, pread, read)
//   NARROW_FAULT_LOG    a file that gets the name of every counted call, in order
// Linux and glibc alone; built for tests alone.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Settings {
  std::string under = variable("NARROW_FAULT_UNDER"), kind = variable("NARROW_FAULT_KIND"), log = variable("NARROW_FAULT_LOG"),
              victim = variable("NARROW_FAULT_VICTIM");
  bool writes = variable("NARROW_FAULT_SIDE") != "read";
  long at = std::atol(variable("NARROW_FAULT_AT").c_str());
};

const Settings& settings() {
  static const Settings instance;
  return instance;
}

constexpr int kMostDescriptors = 1024;
enum : unsigned char { kOther, kRead, kWritten };
std::atomic<unsigned char> kinds[kMostDescriptors];
std::atomic<long> calls{0};

bool is_under(const char* path) {
  char absolute[4096];
  if (path == nullptr || settings().under.empty()) return false;
  if (path[0] == '/') return std::strncmp(path, settings().under.c_str(), settings().under.size()) == 0;
  if (getcwd(absolute, sizeof absolute) == nullptr) return false;
  return (std::string(absolute) + "/" + path).starts_with(settings().under);
}

unsigned char kind_of(int descriptor) { return descriptor >= 0 && descriptor < kMostDescriptors ? kinds[descriptor].load() : kOther; }
void remember(int descriptor, unsigned char kind) {
  if (descriptor >= 0 && descriptor < kMostDescriptors) kinds[descriptor] = kind;
}

int number_of(const std::string& kind) {
  if (kind == "ENOSPC") return ENOSPC;
  if (kind == "EIO") return EIO;
  if (kind == "EINTR") return EINTR;
  if (kind == "EDQUOT") return EDQUOT;
  if (kind == "EROFS") return EROFS;
  return 0;
}

/// What became of the file that is read, while it is read.
void spoil_victim() {
  const int descriptor = next<int(const char*, int, ...)>("open")(settings().victim.c_str(), O_RDWR);
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return;
  if (settings().kind == "cut") {
    if (next<int(int, off_t)>("ftruncate")(descriptor, status.st_size / 2) != 0) std::perror("ftruncate");
  } else {
    char byte = 0;
    const off_t place = status.st_size - 1;
    if (next<ssize_t(int, void*, size_t, off_t)>("pread")(descriptor, &byte, 1, place) != 1) std::perror("pread");
    byte = static_cast<char>(byte ^ 0x40);
    if (next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(descriptor, &byte, 1, place) != 1) std::perror("pwrite");
  }
  next<int(int)>("close")(descriptor);
}

enum class Fault { kNone, kError, kShort, kKillAfter };

/// Counts the call; says what is to happen to it, and sets errno for an error.
Fault meet(bool is_write, const char* name) {
  if (is_write != settings().writes) return Fault::kNone;
  const long number = ++calls;
  if (!settings().log.empty()) {
    const int descriptor = next<int(const char*, int, ...)>("open")(settings().log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    const std::string line = std::string(name) + "\n";
    if (next<ssize_t(int, const void*, size_t)>("write")(descriptor, line.data(), line.size()) < 0) std::perror("log");
    next<int(int)>("close")(descriptor);
  }
  if (number != settings().at) return Fault::kNone;
  const std::string& kind = settings().kind;
  if (kind == "kill") kill(getpid(), SIGKILL);
  if (kind == "kill-after") return Fault::kKillAfter;
  if (kind == "short") return Fault::kShort;
  if (kind == "cut" || kind == "change") {
    spoil_victim();
    return Fault::kNone;
  }
  errno = number_of(kind);
  return errno != 0 ? Fault::kError : Fault::kNone;
}

template <typename Result>
Result after(Fault fault, Result result) {
  if (fault == Fault::kKillAfter) kill(getpid(), SIGKILL);
  return result;
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  const bool mine = is_under(path), writes = (flags & (O_CREAT | O_WRONLY | O_RDWR)) != 0;
  const Fault fault = mine && (flags & O_DIRECTORY) == 0 ? meet(writes, writes ? "create" : "open") : Fault::kNone;
  if (fault == Fault::kError) return -1;
  const int descriptor = next<int(int, const char*, int, ...)>("openat")(directory, path, flags, mode);
  remember(descriptor, mine ? (writes || (flags & O_DIRECTORY) != 0 ? kWritten : kRead) : kOther);
  return after(fault, descriptor);
}

template <typename... Rest>
ssize_t write_call(const char* name, int descriptor, const void* bytes, size_t size, Rest... rest) {
  const Fault fault = kind_of(descriptor) == kWritten ? meet(true, name) : Fault::kNone;
  if (fault == Fault::kError) return -1;
  return after(fault, next<ssize_t(int, const void*, size_t, Rest...)>(name)(
                          descriptor, bytes, fault == Fault::kShort && size > 1 ? size / 2 : size, rest...));
}

template <typename... Rest>
ssize_t read_call(const char* name, int descriptor, void* bytes, size_t size, Rest... rest) {
  const Fault fault = kind_of(descriptor) == kRead ? meet(false, name) : Fault::kNone;
  if (fault == Fault::kError) return -1;
  return after(fault, next<ssize_t(int, void*, size_t, Rest...)>(name)(descriptor, bytes,
                                                                       fault == Fault::kShort && size > 1 ? size / 2 : size, rest...));
}

mode_t mode_in(int flags, va_list list) { return (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_in(flags, list);
  va_end(list);
  return open_at(AT_FDCWD, path, flags, mode);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  return write_call("pwrite", descriptor, bytes, size, offset);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  return write_call("pwrite", descriptor, bytes, size, offset);
}
ssize_t write(int descriptor, const void* bytes, size_t size) { return write_call("write", descriptor, bytes, size); }
ssize_t pread(int descriptor, void* bytes, size_t size, off_t offset) { return read_call("pread", descriptor, bytes, size, offset); }
ssize_t pread64(int descriptor, void* bytes, size_t size, off64_t offset) { return read_call("pread", descriptor, bytes, size, offset); }
ssize_t read(int descriptor, void* bytes, size_t size) { return read_call("read", descriptor, bytes, size); }

int fsync(int descriptor) {
  const Fault fault = kind_of(descriptor) == kWritten ? meet(true, "fsync") : Fault::kNone;
  return fault == Fault::kError ? -1 : after(fault, next<int(int)>("fsync")(descriptor));
}
int ftruncate(int descriptor, off_t size) noexcept {
  const Fault fault = kind_of(descriptor) == kWritten ? meet(true, "ftruncate") : Fault::kNone;
  return fault == Fault::kError ? -1 : after(fault, next<int(int, off_t)>("ftruncate")(descriptor, size));
}
int close(int descriptor) {
  const Fault fault = kind_of(descriptor) == kWritten ? meet(true, "close") : Fault::kNone;
  remember(descriptor, kOther);
  const int error = errno, result = next<int(int)>("close")(descriptor);  // the descriptor is gone in any case
  if (fault != Fault::kError) return after(fault, result);
  errno = error;
  return -1;
}
int rename(const char* from, const char* to) noexcept {
  const Fault fault = is_under(to) ? meet(true, "rename") : Fault::kNone;
  return fault == Fault::kError ? -1 : after(fault, next<int(const char*, const char*)>("rename")(from, to));
}
int mkdir(const char* path, mode_t mode) noexcept {
  const Fault fault = is_under(path) ? meet(true, "mkdir") : Fault::kNone;
  return fault == Fault::kError ? -1 : after(fault, next<int(const char*, mode_t)>("mkdir")(path, mode));
}

}  // extern "C"
