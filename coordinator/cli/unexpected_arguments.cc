// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/unexpected_arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "cluster/process/nearest_name.h"

namespace ringfleet::coordinator::cli {
namespace {

// Flags of llama.cpp and vLLM that many will try.
constexpr struct {
  absl::string_view flag;
  absl::string_view lacks;
} kUnsupportedFlags[] = {
    {"--reverse-prompt", "--stop names a stop string"},
    {"--repeat-last-n", "penalties count all tokens"},
    {"--typical", "typical sampling is not supported"},
    {"--mirostat", "mirostat sampling is not supported"},
    {"--num-beams", "beam search is not supported"},
    {"--grammar", "grammars are not supported"},
    {"--grammar-file", "grammars are not supported"},
    {"--json-schema", "grammars are not supported"},
    {"--chat-template", "chat templates are not applied to prompts"},
    {"--system-prompt", "chat templates are not applied to prompts"},
    {"--lora", "adapters are not supported"},
    {"--n-gpu-layers", "this program computes on CPUs"},
    {"--gpu-layers", "this program computes on CPUs"},
};

void AppendLongFlags(const CLI::App& app, std::vector<std::string>* flags) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags->push_back(absl::StrCat("--", name));
    }
  }
  // Groups of options, too.
  for (const CLI::App* part :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    if (part->get_name().empty()) AppendLongFlags(*part, flags);
  }
}

// Returns "" if there is nothing to say.
std::string HintOfFlag(absl::string_view flag,
                       absl::Span<const absl::string_view> known) {
  for (const auto& unsupported : kUnsupportedFlags) {
    if (unsupported.flag == flag) return std::string(unsupported.lacks);
  }
  const absl::string_view nearest = cluster::NearestName(flag, known);
  return nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "?");
}

}  // namespace

std::string DescribeUnexpected(const CLI::App& verb,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> flags;
  AppendLongFlags(verb, &flags);
  const std::vector<absl::string_view> known(flags.begin(), flags.end());
  std::vector<std::string> hints;
  bool has_flag = false;
  for (const std::string& argument : arguments) {
    if (argument.rfind("-", 0) != 0) continue;
    has_flag = true;
    const std::string hint =
        HintOfFlag(argument.substr(0, argument.find('=')), known);
    if (!hint.empty() &&
        std::find(hints.begin(), hints.end(), hint) == hints.end()) {
      hints.push_back(hint);
    }
  }
  if (!has_flag &&
      std::find(known.begin(), known.end(), "--prompt") != known.end()) {
    hints.push_back("a prompt follows -p");
  }
  return absl::StrCat("unexpected argument", arguments.size() == 1 ? " " : "s ",
                      absl::StrJoin(arguments, " "), hints.empty() ? "" : ": ",
                      absl::StrJoin(hints, "; "));
}

}  // namespace ringfleet::coordinator::cli
