/// The names of methods.

#include <array>

#include <fmt/format.h>

#include "io/text.h"
#include "narrow/error.h"
#include "narrow/methods.h"

namespace narrow {
namespace {

struct Step {
  std::string_view name;
  bool Method::*member;
};
constexpr std::array kSteps{Step{"rotate", &Method::rotate}, Step{"smoothquant", &Method::smoothquant},
                            Step{"awq", &Method::awq},       Step{"correct", &Method::correct},
                            Step{"gptq", &Method::gptq},     Step{"clip", &Method::clip},
                            Step{"refine", &Method::refine}, Step{"tune", &Method::tune}};

}  // namespace

Method Method::parse(std::string_view text) {
  Method method;
  if (text == "rtn") return method;
  for (std::string_view rest = text;;) {
    const std::string_view name = rest.substr(0, rest.find('+'));
    bool known = false;
    for (const Step& step : kSteps) {
      if (step.name != name) continue;
      if (method.*step.member)
        throw InvalidArgument(fmt::format("method {} has the step {} twice", io::in_quotes(std::string(text)), name));
      method.*step.member = known = true;
    }
    if (!known) {
      std::string names = "rtn";
      for (const Step& step : kSteps) names += fmt::format(", {}", step.name);
      throw InvalidArgument(fmt::format("method {}: {} is none of {}; join steps by +", io::in_quotes(std::string(text)),
                                        io::in_quotes(std::string(name)), names));
    }
    if (name.size() == rest.size()) return method;
    rest.remove_prefix(name.size() + 1);
  }
}

std::string Method::to_string() const {
  std::string text;
  for (const Step& step : kSteps)
    if (this->*step.member) text += fmt::format("{}{}", text.empty() ? "" : "+", step.name);
  return text.empty() ? "rtn" : text;
}

}  // namespace narrow
