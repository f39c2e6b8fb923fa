// SPDX-License-Identifier: Apache-2.0
// Translates the expressions of a tokenizer.json, which are written for
// Oniguruma, into PCRE2's.
#ifndef RINGFLEET_COORDINATOR_TOKENIZER_SPLIT_EXPRESSION_H_
#define RINGFLEET_COORDINATOR_TOKENIZER_SPLIT_EXPRESSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// Returns an expression that matches the same texts under PCRE2_UTF, PCRE2_UCP,
// PCRE2_MULTILINE and newlines of one LF.
//
// INVALID_ARGUMENT names a construct that both libraries compile and read
// differently, and its offset. A construct that PCRE2 refuses itself passes.
absl::StatusOr<std::string> TranslateExpression(absl::string_view expression);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_TOKENIZER_SPLIT_EXPRESSION_H_
