// What the memory sanitizer is told of the few functions of libstdc++ that were compiled without it: what they have written. `ld --wrap`
// leads the library's calls here (fuzz/CMakeLists.txt names them); this file is compiled without the sanitizer itself.
#include <sanitizer/msan_interface.h>

#include <filesystem>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>

namespace {

using Node = std::_Rb_tree_node_base;
using Path = std::filesystem::path;
using Failure = std::runtime_error;

void written(const Path& path) {
  __msan_unpoison(&path, sizeof path);
  __msan_unpoison(path.native().data(), path.native().size() + 1);
}

void written(const Failure& failure) {
  __msan_unpoison(&failure, sizeof failure);
  __msan_unpoison_string(failure.what());
}

}  // namespace

extern "C" {

// std::_Rb_tree_insert_and_rebalance: a node's links; those of the others were written before.
void __real__ZSt29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_(bool left, Node* node, Node* parent, Node& header);
void __wrap__ZSt29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_(bool left, Node* node, Node* parent, Node& header) {
  __real__ZSt29_Rb_tree_insert_and_rebalancebPSt18_Rb_tree_node_baseS0_RS_(left, node, parent, header);
  __msan_unpoison(node, sizeof *node);
}

// path::_List(), path::_List(other): one pointer.
void __real__ZNSt10filesystem7__cxx114path5_ListC1Ev(void** list);
void __wrap__ZNSt10filesystem7__cxx114path5_ListC1Ev(void** list) {
  __real__ZNSt10filesystem7__cxx114path5_ListC1Ev(list);
  __msan_unpoison(list, sizeof *list);
}
void __real__ZNSt10filesystem7__cxx114path5_ListC1ERKS2_(void** list, const void* other);
void __wrap__ZNSt10filesystem7__cxx114path5_ListC1ERKS2_(void** list, const void* other) {
  __real__ZNSt10filesystem7__cxx114path5_ListC1ERKS2_(list, other);
  __msan_unpoison(list, sizeof *list);
}

// path::_List::end: what it points behind is looked at next, a path and where it begins.
const char* __real__ZNKSt10filesystem7__cxx114path5_List3endEv(const void* list);
const char* __wrap__ZNKSt10filesystem7__cxx114path5_List3endEv(const void* list) {
  const char* end = __real__ZNKSt10filesystem7__cxx114path5_List3endEv(list);
  constexpr std::size_t kBytes = sizeof(Path) + sizeof(std::size_t);
  __msan_unpoison(end - kBytes, kBytes);
  written(*reinterpret_cast<const Path*>(end - kBytes));
  return end;
}

// path::_M_split_cmpts, path = other, path /= other, path::parent_path
void __real__ZNSt10filesystem7__cxx114path14_M_split_cmptsEv(Path* path);
void __wrap__ZNSt10filesystem7__cxx114path14_M_split_cmptsEv(Path* path) {
  __real__ZNSt10filesystem7__cxx114path14_M_split_cmptsEv(path);
  written(*path);
}
Path* __real__ZNSt10filesystem7__cxx114pathaSERKS1_(Path* path, const Path* other);
Path* __wrap__ZNSt10filesystem7__cxx114pathaSERKS1_(Path* path, const Path* other) {
  __real__ZNSt10filesystem7__cxx114pathaSERKS1_(path, other);
  written(*path);
  return path;
}
Path* __real__ZNSt10filesystem7__cxx114pathdVERKS1_(Path* path, const Path* other);
Path* __wrap__ZNSt10filesystem7__cxx114pathdVERKS1_(Path* path, const Path* other) {
  __real__ZNSt10filesystem7__cxx114pathdVERKS1_(path, other);
  written(*path);
  return path;
}
Path* __real__ZNKSt10filesystem7__cxx114path11parent_pathEv(Path* parent, const Path* path);
Path* __wrap__ZNKSt10filesystem7__cxx114path11parent_pathEv(Path* parent, const Path* path) {
  __real__ZNKSt10filesystem7__cxx114path11parent_pathEv(parent, path);
  written(*parent);
  return parent;
}

// runtime_error(text), of either kind and as a base, runtime_error(other)
void __real__ZNSt13runtime_errorC1EPKc(Failure* failure, const char* text);
void __wrap__ZNSt13runtime_errorC1EPKc(Failure* failure, const char* text) {
  __real__ZNSt13runtime_errorC1EPKc(failure, text);
  written(*failure);
}
void __real__ZNSt13runtime_errorC2EPKc(Failure* failure, const char* text);
void __wrap__ZNSt13runtime_errorC2EPKc(Failure* failure, const char* text) {
  __real__ZNSt13runtime_errorC2EPKc(failure, text);
  written(*failure);
}
void __real__ZNSt13runtime_errorC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE(Failure* failure, const std::string* text);
void __wrap__ZNSt13runtime_errorC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE(Failure* failure, const std::string* text) {
  __real__ZNSt13runtime_errorC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE(failure, text);
  written(*failure);
}
void __real__ZNSt13runtime_errorC1ERKS_(Failure* failure, const Failure* other);
void __wrap__ZNSt13runtime_errorC1ERKS_(Failure* failure, const Failure* other) {
  __real__ZNSt13runtime_errorC1ERKS_(failure, other);
  written(*failure);
}

// locale(), locale(other), locale = other: one pointer.
void __real__ZNSt6localeC1Ev(void** locale);
void __wrap__ZNSt6localeC1Ev(void** locale) {
  __real__ZNSt6localeC1Ev(locale);
  __msan_unpoison(locale, sizeof *locale);
}
void __real__ZNSt6localeC1ERKS_(void** locale, const void* other);
void __wrap__ZNSt6localeC1ERKS_(void** locale, const void* other) {
  __real__ZNSt6localeC1ERKS_(locale, other);
  __msan_unpoison(locale, sizeof *locale);
}
void** __real__ZNSt6localeaSERKS_(void** locale, const void* other);
void** __wrap__ZNSt6localeaSERKS_(void** locale, const void* other) {
  __real__ZNSt6localeaSERKS_(locale, other);
  __msan_unpoison(locale, sizeof *locale);
  return locale;
}

// std::__throw_regex_error: what it has thrown goes on.
[[noreturn]] void __real__ZSt19__throw_regex_errorNSt15regex_constants10error_typeE(std::regex_constants::error_type error);
[[noreturn]] void __wrap__ZSt19__throw_regex_errorNSt15regex_constants10error_typeE(std::regex_constants::error_type error) {
  try {
    __real__ZSt19__throw_regex_errorNSt15regex_constants10error_typeE(error);
  } catch (const std::regex_error& failure) {
    __msan_unpoison(&failure, sizeof failure);
    written(failure);
    throw;
  }
}

// std::__throw_out_of_range_fmt puts a sentence together that nobody reads.
[[noreturn]] void __wrap__ZSt24__throw_out_of_range_fmtPKcz(const char* format, ...) { throw std::out_of_range(format); }
}
