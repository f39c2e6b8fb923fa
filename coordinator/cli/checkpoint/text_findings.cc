// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/text_findings.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ringfleet::coordinator::cli {
namespace {

bool HasId(const std::vector<uint32_t>& ids, uint32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void JudgeStops(const cluster::ModelSpec& spec,
                const cluster::GenerationDefaults& generation,
                const Tokenizer& tokenizer, TextFindings* findings) {
  const uint32_t vocab_size = static_cast<uint32_t>(spec.vocab_size);
  const std::vector<uint32_t>& generated = generation.eos_token_ids;
  const std::vector<uint32_t>& stops =
      generated.empty() ? spec.eos_token_ids : generated;
  const char* const file =
      generated.empty() ? "config.json" : "generation_config.json";
  if (stops.empty() && !tokenizer.eos_id().has_value()) {
    findings->doubts.push_back(
        "no file names an end token: only a limit ends an answer");
  }
  for (const uint32_t id : stops) {
    if (id >= vocab_size) {
      findings->contradictions.push_back(
          absl::StrCat(file, ": eos_token_id ", id, ", want less than ",
                       vocab_size, " (vocab_size)"));
    } else if (tokenizer.TokenBytes(id).empty()) {
      findings->doubts.push_back(absl::StrCat(
          file, ": eos_token_id ", id, " has no token in the tokenizer"));
    }
  }
  if (stops.empty()) return;
  const std::string listed = absl::StrJoin(stops, ", ");
  for (const uint32_t id : spec.eos_token_ids) {
    if (HasId(stops, id)) continue;
    findings->doubts.push_back(absl::StrCat(
        "config.json: eos_token_id ", id,
        " does not end an answer: generation_config.json has ", listed));
  }
  if (tokenizer.eos_id().has_value() && !HasId(stops, *tokenizer.eos_id())) {
    findings->doubts.push_back(
        absl::StrCat("tokenizer: eos_token \"",
                     absl::Utf8SafeCHexEscape(tokenizer.eos_token()), "\" (",
                     *tokenizer.eos_id(), ") does not end an answer: ", file,
                     " has ", listed));
  }
}

}  // namespace

TextFindings JudgeTextFiles(const cluster::ModelSpec& spec,
                            const cluster::GenerationDefaults& generation,
                            const Tokenizer& tokenizer) {
  TextFindings findings;
  const uint32_t vocab_size = static_cast<uint32_t>(spec.vocab_size);
  if (tokenizer.id_limit() > vocab_size) {
    const uint32_t last = tokenizer.id_limit() - 1;
    findings.contradictions.push_back(
        absl::StrCat("tokenizer: id ", last, " is \"",
                     absl::Utf8SafeCHexEscape(tokenizer.TokenBytes(last)),
                     "\", want ids below ", vocab_size, " (vocab_size)"));
  }
  JudgeStops(spec, generation, tokenizer, &findings);
  if (tokenizer.bos_id().has_value() && spec.bos_token_id.has_value() &&
      *tokenizer.bos_id() != *spec.bos_token_id) {
    findings.doubts.push_back(
        absl::StrCat("tokenizer: bos_token \"",
                     absl::Utf8SafeCHexEscape(tokenizer.bos_token()), "\" is ",
                     *tokenizer.bos_id(), ", but config.json has bos_token_id ",
                     *spec.bos_token_id));
  }
  if (tokenizer.chat_template().empty()) {
    findings.doubts.push_back("tokenizer: no chat template");
  }
  return findings;
}

}  // namespace ringfleet::coordinator::cli
