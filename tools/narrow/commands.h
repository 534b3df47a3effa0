#pragma once
/// The subcommands: each adds itself to the parser and sets Context::run where it is chosen.

#include <CLI/CLI.hpp>

#include "context.h"

namespace narrow::command {

void add_formats(CLI::App& app, Context& context);
void add_inspect(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_search(CLI::App& app, Context& context);
void add_quantize(CLI::App& app, Context& context);
void add_dequantize(CLI::App& app, Context& context);
void add_calibrate(CLI::App& app, Context& context);
void add_compare(CLI::App& app, Context& context);
void add_eval(CLI::App& app, Context& context);
void add_generate(CLI::App& app, Context& context);
void add_tokenize(CLI::App& app, Context& context);
void add_convert(CLI::App& app, Context& context);
void add_verify(CLI::App& app, Context& context);
void add_kernels(CLI::App& app, Context& context);
void add_bench(CLI::App& app, Context& context);
void add_layout(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_manual(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);

/// A subcommand with its place in the help: one sentence, then an example under its options.
CLI::App* add_command(CLI::App& app, const char* name, const char* sentence, const char* example);

}  // namespace narrow::command
