/// The command `narrow`: global options, errors and exit codes. The work is in one file per subcommand.

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <omp.h>

#include "build_facts.h"
#include "commands.h"
#include "device/cpu_features.h"
#include "narrow/error.h"
#include "narrow/tuned_kernels.h"
#include "thread_waiting.h"
#include "value_checks.h"

namespace narrow::command {

constexpr const char* kExitCodes =
    "Exit codes: 0 done; 1 a check failed (verify, compare, doctor); 2 wrong usage; 3 a file is not what it\n"
    "claims to be; 4 reading or writing failed; 5 not possible on this machine or in this build;\n"
    "6 an error in narrow itself; 130 interrupted, nothing left behind.";

CLI::App* add_command(CLI::App& app, const char* name, const char* sentence, const char* example) {
  CLI::App* command = app.add_subcommand(name, sentence);
  command->fallthrough();
  command->group("Commands");
  command->set_help_flag("-h,--help", "Print this help");
  command->footer(fmt::format(
      "Example:\n{}\nOptions of every command (narrow --help): --threads, --cpu, --tuned, --json, --quiet, --no-color", example));
  return command;
}

namespace {

void add_global_options(CLI::App& app, Context& context) {
  app.add_option("--threads", context.threads, "Use N threads (default: all cores); results do not depend on it")
      ->type_name("N")
      ->check(number_from(1, 4096));
  app.add_option("--cpu", context.cpu, "Use no newer instruction set: scalar, avx2, avx512, amx, neon, ..")->type_name("ISA");
  app.add_option("--tuned", context.tuned,
                 "Let GPU products take the kernels that `narrow kernels --tune` measured into this file; so it is with NARROW_TUNED set")
      ->option_text("FILE")
      ->envname("NARROW_TUNED");
  app.add_flag("--json", context.json, "Answer in JSON on standard output, for machines");
  app.add_flag("--quiet", context.quiet, "No progress and no text; errors, warnings and --json remain");
  app.add_flag("--no-color", context.no_color, "No colours; so it is with NO_COLOR set and in a pipe");
  app.set_version_flag("--version", version_text(), "Print the version and how it was built, and exit");
}

void build_parser(CLI::App& app, Context& context) {
  app.get_formatter()->column_width(28);
  app.get_formatter()->label("REQUIRED", "");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.get_formatter()->label("Positionals", "Arguments");
  app.set_help_flag("-h,--help", "Print this help; `narrow COMMAND --help` explains a command");
  app.require_subcommand(1);
  add_global_options(app, context);
  add_formats(app, context);
  add_inspect(app, context);
  add_plan(app, context);
  add_search(app, context);
  add_quantize(app, context);
  add_dequantize(app, context);
  add_calibrate(app, context);
  add_convert(app, context);
  add_compare(app, context);
  add_eval(app, context);
  add_generate(app, context);
  add_tokenize(app, context);
  add_verify(app, context);
  add_kernels(app, context);
  add_bench(app, context);
  add_layout(app, context);
  add_doctor(app, context);
  add_manual(app, context);
  add_completion(app, context);
  app.footer(
      fmt::format("First steps:\n"
                  "  narrow inspect model/                    what is in a checkpoint\n"
                  "  narrow plan model/ int8:row              what quantizing it would give, before any work\n"
                  "  narrow quantize model/ small/ int8:row   do it\n"
                  "  narrow compare model/ small/             what it cost, tensor by tensor\n\n"
                  "A checkpoint is a safetensors file, or a directory with one or with shards (as Hugging Face\n"
                  "has them). A SCHEME is FORMAT[:GRANULARITY][:asym][:scale=FORMAT]: int8:row, int4:block128:asym,\n"
                  "fp8_e4m3:128x128, fp6_e3m2:row, or a block format: nvfp4, mxfp4, msfp12; a preset such as W8A8 is\n"
                  "one with rounded inputs. `narrow formats` lists formats and presets.\n\n{}",
                  kExitCodes));
}

void apply_global_options(const Context& context) {
  if (context.threads > 0) omp_set_num_threads(context.threads);
  // What is to be measured is not taken from the file: kernels.cc reads and writes it.
  if (!context.tuned.empty() && !context.has_argument("--tune"))
    if (const std::string ignored = use_tuned_kernels(context.tuned, cuda::tuned_machine()); !ignored.empty()) context.warn(ignored);
  if (context.cpu.empty()) return;
  const std::optional<Isa> isa = parse_isa(context.cpu);
  if (!isa) {
    std::string names;
    for (const Isa known : all_isas()) names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(known));
    throw InvalidArgument(fmt::format("--cpu {} is no instruction set that narrow knows; there are {}", context.cpu, names));
  }
  limit_cpu(*isa);
}

int fail(const Context& context, int code, const std::string& sentence) {
  std::fputs(fmt::format("{} {}\n", report::painted(context.err, report::Paint::kBad, "narrow:"), sentence).c_str(), stderr);
  return code;
}

/// What people type who come from elsewhere, and what stands for it here.
constexpr std::pair<std::string_view, std::string_view> kOtherWords[] = {
    {"-V", "--version"},  {"-v", "--version"},    {"benchmark", "bench"}, {"check", "verify"},
    {"chat", "generate"}, {"diff", "compare"},    {"evaluate", "eval"},   {"export", "convert"},
    {"info", "inspect"},  {"ls", "inspect"},      {"perplexity", "eval"}, {"presets", "formats"},
    {"run", "generate"},  {"schemes", "formats"}, {"show", "inspect"},    {"version", "--version"}};

/// The command or option that was meant: known by another name elsewhere, begun, or misspelt. Empty: nobody knows.
std::string meant_word(const std::string& word, const std::vector<std::string>& names) {
  for (const auto& [other, here] : kOtherWords)
    if (other == word) return std::string(here);
  if (word.size() < 3) return "";
  std::vector<std::string> begun;
  for (const std::string& name : names)
    if (name.starts_with(word)) begun.push_back(name);
  return begun.size() == 1 ? begun.front() : nearest_name(word, names);
}

std::string is_meant(const std::string& word, const std::vector<std::string>& names) {
  const std::string meant = meant_word(word, names);
  return meant.empty() ? "" : fmt::format(", {} is", meant);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// What is wrong where no command was recognised.
std::string missing_command(const CLI::App& app, const Context& context) {
  for (std::size_t i = 0; i < context.arguments.size(); ++i) {
    const std::string& argument = context.arguments[i];
    if (!argument.starts_with("-")) {
      std::vector<std::string> names;
      for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
      if (argument == "onnx") return "'onnx' is a command of the Python package: pip install 'narrow[onnx]', then python -m narrow onnx";
      return fmt::format("'{}' is not a command{}", argument, is_meant(argument, names));
    }
    const std::size_t equals = argument.find('=');
    const CLI::Option* option = app.get_option_no_throw(argument.substr(0, equals));
    if (option == nullptr) return fmt::format("'{}' is not an option{}", argument, is_meant(argument.substr(0, equals), option_names(app)));
    if (equals == std::string::npos && option->get_items_expected_min() > 0) ++i;  // its value
  }
  return "a command is missing";
}

/// What is wrong with words that a command has no place for.
std::string unexpected_words(const CLI::App& app, const CLI::App& command) {
  const std::vector<std::string> words = app.remaining(true);
  std::vector<std::string> names = option_names(command);
  for (const std::string& name : option_names(app)) names.push_back(name);
  for (const std::string& word : words)
    if (word.starts_with("-") && word.size() > 1 && std::isdigit(static_cast<unsigned char>(word[1])) == 0) {
      const std::string name = word.substr(0, word.find('='));
      return fmt::format("'{}' is not an option of {}{}", name, command.get_name(), is_meant(name, names));
    }
  return fmt::format("{} has no place for '{}'", command.get_name(), words.empty() ? "" : words.front());
}

/// The parser's complaint about a value in the words of the help: "--report: 1 required TEXT missing" names no type that people know.
std::string value_complaint(const CLI::App& app, const CLI::ParseError& error) {
  const std::string what = error.what(), name = what.substr(0, what.find(':'));
  const auto chosen = app.get_subcommands();
  const CLI::Option* option = chosen.empty() ? nullptr : chosen.front()->get_option_no_throw(name);
  if (option == nullptr) option = app.get_option_no_throw(name);
  if (option == nullptr) return what;
  const std::string value = option->get_option_text().empty() ? option->get_type_name() : option->get_option_text();
  if (what.ends_with(" missing")) return fmt::format("{} needs a value: {}", name, value);
  const std::size_t received = what.rfind(' ');
  return fmt::format("{} takes {}, not {} values", name, value, what.substr(received + 1));
}

/// One sentence for what the parser rejected, and where to read more.
int fail_usage(const CLI::App& app, const Context& context, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? "narrow" : "narrow " + chosen.front()->get_name();
  std::string sentence = error.what();
  if (chosen.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) sentence = missing_command(app, context);
  if (!chosen.empty() && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) sentence = unexpected_words(app, *chosen.front());
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) sentence = value_complaint(app, error);
  while (!sentence.empty() && (sentence.back() == '\n' || sentence.back() == '.')) sentence.pop_back();
  for (char& letter : sentence)
    if (letter == '\n') letter = ' ';
  return fail(context, kWrongUsage, fmt::format("{}; `{} --help` shows how it is used", sentence, command));
}

int guarded(Context& context, const std::function<void()>& work) {
  try {
    work();
    return context.exit_code;
  } catch (const Interrupted&) {
    return fail(context, kInterrupted, "interrupted; nothing was left behind");
  } catch (const InvalidArgument& error) {
    return fail(context, kWrongUsage, error.what());
  } catch (const CorruptFile& error) {
    return fail(context, kBadFile, error.what());
  } catch (const IoError& error) {
    return fail(context, kInputOutput, error.what());
  } catch (const Unsupported& error) {
    return fail(context, kUnsupported, error.what());
  } catch (const CudaError& error) {
    return fail(context, kUnsupported, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(context, kInputOutput,
                error.path1().empty() ? error.what() : fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::bad_alloc&) {
    return fail(context, kUnsupported, "there is not enough memory; `narrow plan` says how much a quantization needs");
  } catch (const std::exception& error) {
    return fail(context, kInternal, fmt::format("internal error: {}", error.what()));
  }
}

/// A reader that went away (`narrow formats | head -1`) is no error; a full disk is.
int write_output(const Context& context, int code) {
  const bool written =
      std::fwrite(context.output.data(), 1, context.output.size(), stdout) == context.output.size() && std::fflush(stdout) == 0;
  if (written || errno == EPIPE || context.output.empty()) return code;
  return fail(context, kInputOutput, fmt::format("standard output cannot be written: {}", std::strerror(errno)));
}

int run(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of write, not an end
  Context context;
  context.arguments.assign(argv + 1, argv + argc);
  if (argc > 1 && context.arguments.front() == "help") {  // narrow help quantize
    context.arguments.erase(context.arguments.begin());
    context.arguments.emplace_back("--help");
  }
  CLI::App app{"narrow makes the weights of a model small: number formats of 1 to 16 bits and their scales.\n", "narrow"};
  build_parser(app, context);
  context.no_color = context.has_argument("--no-color");
  detect_terminal(context);
  if (argc <= 1) {
    std::fputs(app.help().c_str(), stderr);
    return kWrongUsage;
  }
  try {
    app.parse(std::vector<std::string>(context.arguments.rbegin(), context.arguments.rend()));
  } catch (const CLI::Success& request) {  // --help, --version
    context.output = dynamic_cast<const CLI::CallForVersion*>(&request) != nullptr ? std::string(request.what()) + "\n"
                     : app.get_subcommands().empty()                               ? app.help()
                                                                                   : app.get_subcommands().front()->help("narrow");
    return write_output(context, kOk);
  } catch (const CLI::ParseError& error) {
    return fail_usage(app, context, error);
  }
  const int code = guarded(context, [&] {
    apply_global_options(context);
    context.run();
  });
  return write_output(context, code);
}

}  // namespace
}  // namespace narrow::command

int main(int argc, char** argv) {
  narrow::command::wait_politely(argv);
  return narrow::command::run(argc, argv);
}
