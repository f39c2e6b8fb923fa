// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/arguments.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/jinja/integer.h"
#include "coordinator/jinja/print.h"

namespace ringfleet::coordinator::jinja {

absl::Status CallError(absl::string_view callee, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(callee, "(): ", problem));
}

absl::StatusOr<BoundArguments> BoundArguments::Bind(
    absl::string_view callee, const Arguments& arguments,
    std::initializer_list<absl::string_view> parameters, size_t required) {
  if (arguments.positional.size() > parameters.size()) {
    return CallError(
        callee, absl::StrCat(arguments.positional.size(),
                             " arguments, want at most ", parameters.size()));
  }
  BoundArguments bound;
  bound.callee_ = callee;
  bound.parameters_ = parameters;
  bound.values_.resize(parameters.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values_[i] = arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.keywords) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    const size_t index = found - parameters.begin();
    if (found == parameters.end() || bound.Has(index)) {
      return CallError(callee,
                       absl::StrCat("unexpected argument \"", name, "\""));
    }
    bound.values_[index] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound.Has(i)) {
      return CallError(callee, absl::StrCat("argument \"", bound.parameters_[i],
                                            "\" is missing"));
    }
  }
  return bound;
}

absl::Status BoundArguments::WrongType(size_t i, absl::string_view want) const {
  const Value& value = (*this)[i];
  if (value.IsUndefined()) return CallError(callee_, *value.AsUndefined());
  return CallError(callee_,
                   absl::StrCat("argument \"", parameters_[i], "\" of type ",
                                value.TypeName(), ", want ", want));
}

absl::StatusOr<Text> BoundArguments::TextOr(size_t i,
                                            absl::string_view fallback) const {
  if (!Has(i)) return Text(fallback, Origin::kTemplate);
  const Text* text = (*this)[i].AsText();
  if (text == nullptr) return WrongType(i, "a string");
  return *text;
}

absl::StatusOr<int64_t> BoundArguments::IntegerOr(size_t i,
                                                  int64_t fallback) const {
  if (!Has(i)) return fallback;
  Integer integer;
  if (!(*this)[i].ToInteger(&integer)) return WrongType(i, "an integer");
  if (Clamped(integer) != integer) {
    return CallError(callee_,
                     absl::StrCat("argument \"", parameters_[i], "\" is ",
                                  IntegerText(integer), ", want 64 bits"));
  }
  return Clamped(integer);
}

}  // namespace ringfleet::coordinator::jinja
