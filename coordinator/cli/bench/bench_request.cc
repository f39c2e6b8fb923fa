// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/bench/bench_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"
#include "coordinator/scheduling/bench_planner.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr uint32_t kMaxNumber = 1 << 30;
constexpr size_t kMaxTests = 10'000;

absl::Status Usage(absl::string_view option, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("usage: ", option, " ", text,
                   ", want numbers as in 1,8,32 or 1-8 or 0-1024+512 or 1-8*2",
                   " up to ", kMaxNumber));
}

bool ParseNumber(absl::string_view text, uint32_t* number) {
  // SimpleAtoi also takes signs and blanks.
  return !text.empty() &&
         text.find_first_not_of("0123456789") == absl::string_view::npos &&
         absl::SimpleAtoi(text, number) && *number <= kMaxNumber;
}

// One number or one range; false when it is neither, or has too many.
bool AppendRange(absl::string_view text, std::vector<uint32_t>* numbers) {
  const std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  uint32_t first = 0;
  if (!ParseNumber(ends.first, &first)) return false;
  if (ends.first.size() == text.size()) {
    numbers->push_back(first);
    return true;
  }
  const size_t sign =
      std::min(ends.second.find_first_of("+*"), ends.second.size());
  uint32_t last = 0;
  uint32_t step = 1;
  if (!ParseNumber(ends.second.substr(0, sign), &last) || last < first) {
    return false;
  }
  const bool multiplies = sign < ends.second.size() && ends.second[sign] == '*';
  if (sign < ends.second.size() &&
      !ParseNumber(ends.second.substr(sign + 1), &step)) {
    return false;
  }
  // Neither would ever reach the end.
  if (step == 0 || (multiplies && (step == 1 || first == 0))) return false;
  for (uint64_t number = first; number <= last;
       number = multiplies ? number * step : number + step) {
    if (numbers->size() >= kMaxTests) return false;
    numbers->push_back(static_cast<uint32_t>(number));
  }
  return true;
}

absl::StatusOr<std::vector<uint32_t>> NumbersOr(
    absl::string_view option, const std::vector<std::string>& texts,
    uint32_t otherwise) {
  if (texts.empty()) return std::vector<uint32_t>{otherwise};
  return ParseNumbers(option, texts);
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ParseNumbers(
    absl::string_view option, const std::vector<std::string>& texts) {
  std::vector<uint32_t> numbers;
  for (const std::string& text : texts) {
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      if (!AppendRange(part, &numbers)) return Usage(option, text);
    }
  }
  return numbers;
}

absl::StatusOr<v1::BenchRequest> MakeBenchRequest(const BenchOptions& options) {
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompts,
                      NumbersOr("-p", options.prompts, 512));
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> generated,
                      NumbersOr("-n", options.generated, 128));
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> depths,
                      NumbersOr("-d", options.depths, 0));
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> parallels,
                      NumbersOr("-np", options.parallels, 1));
  std::vector<std::pair<uint32_t, uint32_t>> sizes;
  for (const uint32_t prompt : prompts) sizes.emplace_back(prompt, 0);
  for (const uint32_t tokens : generated) sizes.emplace_back(0, tokens);
  for (const std::string& pair : options.pairs) {
    const std::vector<absl::string_view> parts = absl::StrSplit(pair, ',');
    std::pair<uint32_t, uint32_t> size;
    if (parts.size() != 2 || !ParseNumber(parts[0], &size.first) ||
        !ParseNumber(parts[1], &size.second)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "usage: -pg ", pair, ", want PROMPT,GENERATED as in 512,128"));
    }
    sizes.push_back(size);
  }
  v1::BenchRequest request;
  for (const uint32_t parallel : parallels) {
    if (parallel == 0) {
      return absl::InvalidArgumentError("usage: -np 0, want 1 or more");
    }
    for (const uint32_t depth : depths) {
      for (const auto& [prompt, tokens] : sizes) {
        if (prompt == 0 && tokens == 0) continue;
        v1::BenchTest* test = request.add_tests();
        test->set_n_prompt(prompt);
        test->set_n_gen(tokens);
        test->set_n_depth(depth);
        test->set_fill(options.fill && depth > 0);
        test->set_n_parallel(parallel);
        if (static_cast<size_t>(request.tests_size()) > kMaxTests) {
          return absl::InvalidArgumentError(
              absl::StrCat("usage: more than ", kMaxTests, " tests"));
        }
      }
    }
  }
  if (request.tests().empty()) {
    return absl::InvalidArgumentError(
        "usage: -p 0 -n 0 leaves nothing to test");
  }
  request.set_repetitions(options.repetitions);
  request.set_delay_ms(static_cast<uint32_t>(options.delay_s * 1e3));
  request.set_no_warmup(options.no_warmup);
  request.set_no_memory_test(options.no_memory_test);
  return request;
}

BenchNeeds NeedsOf(const v1::BenchRequest& request) {
  BenchNeeds needs;
  for (const v1::BenchTest& test : request.tests()) {
    needs.slots = std::max(needs.slots, test.n_parallel());
    needs.context = std::max(needs.context, BenchShape(test).positions);
  }
  return needs;
}

std::string BenchTestName(const v1::BenchTest& test) {
  std::string name;
  if (test.n_prompt() > 0) absl::StrAppend(&name, "pp", test.n_prompt());
  if (test.n_prompt() > 0 && test.n_gen() > 0) absl::StrAppend(&name, "+");
  if (test.n_gen() > 0) absl::StrAppend(&name, "tg", test.n_gen());
  if (test.n_depth() > 0) absl::StrAppend(&name, " @ d", test.n_depth());
  if (test.fill()) absl::StrAppend(&name, " (filled)");
  return name;
}

std::vector<std::string> WithLongOptions(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument == "-np" || argument == "-npl") argument = "--n-parallel";
    if (argument == "-pg") argument = "--prompt-then-gen";
  }
  return arguments;
}

}  // namespace ringfleet::coordinator::cli
