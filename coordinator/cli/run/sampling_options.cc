// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/sampling_options.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::cli {
namespace {

std::string SeedProblem(const std::string& text) {
  uint64_t seed;
  return text == "-1" || absl::SimpleAtoi(text, &seed)
             ? ""
             : absl::StrCat(text, ", want -1 or 0 to 2^64 - 1");
}

// Parses "ID+BIAS" and "ID-BIAS".
absl::StatusOr<v1::LogitBias> ParseBias(const std::string& text) {
  v1::LogitBias bias;
  const size_t sign = text.find_first_of("+-");
  uint32_t id = 0;
  float value = 0;
  if (sign == std::string::npos ||
      !absl::SimpleAtoi(text.substr(0, sign), &id) ||
      !absl::SimpleAtof(text.substr(sign + (text[sign] == '+' ? 1 : 0)),
                        &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ", want an id with a bias, as in 1234+2.5"));
  }
  bias.set_id(id);
  bias.set_bias(value);
  return bias;
}

}  // namespace

void AddSamplingOptions(CLI::App& app, SamplingOptions& options) {
  options.app = &app;
  app.add_option("-n,--predict,--n-predict,--max-tokens", options.max_tokens,
                 "Tokens to write; -1: until a stop or the context's end")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--temp,--temperature", options.temperature,
                 "Temperature; 0: greedy");
  app.add_option("--top-k", options.top_k,
                 "Keep the K likeliest tokens; 0 or -1: off")
      ->check(CLI::Range(int64_t{-1}, int64_t{UINT32_MAX}));
  app.add_option("--top-p", options.top_p,
                 "Keep the likeliest tokens of this mass; 1: off");
  app.add_option("--min-p", options.min_p,
                 "Keep tokens of this share of the likeliest; 0: off");
  app.add_option("--repeat-penalty,--repetition-penalty",
                 options.repetition_penalty,
                 "Divide the logits of ids that the text has; 1: off");
  app.add_option("--presence-penalty", options.presence_penalty,
                 "Take this from the logits of ids that were drawn")
      ->capture_default_str();
  app.add_option("--frequency-penalty", options.frequency_penalty,
                 "Take this from an id's logit for each time it was drawn")
      ->capture_default_str();
  app.add_option("-l,--logit-bias", options.logit_bias,
                 "Add to the logit of an id, as in 1234+2.5 or 1234-100; may "
                 "be given several times")
      ->check([](const std::string& text) {
        return std::string(ParseBias(text).status().message());
      });
  app.add_option("--min-tokens", options.min_tokens,
                 "Draw no end token before so many tokens");
  app.add_option("--bad-word", options.bad_words,
                 "Never write this; may be given several times");
  app.add_option("--stop-id", options.stop_ids,
                 "Another id that ends the text; may be given several times");
  app.add_option("--stop", options.stops,
                 "End the text before this string; may be given several times")
      ->allow_extra_args(false);
  app.add_flag("--include-stop-str-in-output", options.keeps_stop,
               "End the text behind the stop string instead");
  app.add_option("-s,--seed", options.seed,
                 "Seed of the draws, 0 to 2^64 - 1; -1: random [random]")
      ->check(SeedProblem);
  app.add_flag("--ignore-eos", options.ignore_eos, "Go on past the end token");
  app.add_flag("--mask-unused", options.mask_unused,
               "Never draw ids that have no token");
}

absl::StatusOr<v1::GenerateRequest> SamplingOf(const SamplingOptions& options) {
  v1::GenerateRequest request;
  const CLI::App& app = *options.app;
  if (app.count("--temp") > 0) request.set_temperature(options.temperature);
  if (app.count("--top-k") > 0) {
    request.set_top_k(
        static_cast<uint32_t>(std::max<int64_t>(options.top_k, 0)));
  }
  if (app.count("--top-p") > 0) request.set_top_p(options.top_p);
  if (app.count("--min-p") > 0) request.set_min_p(options.min_p);
  if (app.count("--repeat-penalty") > 0) {
    request.set_repetition_penalty(options.repetition_penalty);
  }
  request.set_presence_penalty(options.presence_penalty);
  request.set_frequency_penalty(options.frequency_penalty);
  for (const std::string& text : options.logit_bias) {
    RF_ASSIGN_OR_RETURN(*request.add_logit_bias(), ParseBias(text));
  }
  if (app.count("--min-tokens") > 0) request.set_min_tokens(options.min_tokens);
  request.mutable_bad_words()->Add(options.bad_words.begin(),
                                   options.bad_words.end());
  request.mutable_stop_token_ids()->Add(options.stop_ids.begin(),
                                        options.stop_ids.end());
  request.mutable_stop()->Add(options.stops.begin(), options.stops.end());
  request.set_include_stop_str_in_output(options.keeps_stop);
  uint64_t seed;
  if (absl::SimpleAtoi(options.seed, &seed)) request.set_seed(seed);
  request.set_max_tokens(options.max_tokens);
  request.set_ignore_eos(options.ignore_eos);
  request.set_mask_unused(options.mask_unused);
  return request;
}

}  // namespace ringfleet::coordinator::cli
