// SPDX-License-Identifier: Apache-2.0
// Arguments of filters, tests, functions and methods, by their names.
#ifndef RINGFLEET_COORDINATOR_JINJA_ARGUMENTS_H_
#define RINGFLEET_COORDINATOR_JINJA_ARGUMENTS_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Returns the error "callee(): problem".
absl::Status CallError(absl::string_view callee, absl::string_view problem);

// The arguments of one call in the order of the callee's parameters.
class BoundArguments {
 public:
  // Requires that `callee` and the parameters outlive the arguments.
  // Errors: INVALID_ARGUMENT: too many arguments, an unknown name, one of the
  // first `required` parameters without argument, or an argument given twice.
  static absl::StatusOr<BoundArguments> Bind(
      absl::string_view callee, const Arguments& arguments,
      std::initializer_list<absl::string_view> parameters, size_t required = 0);

  absl::string_view callee() const { return callee_; }
  bool Has(size_t i) const { return values_[i].has_value(); }
  // Requires Has(i).
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value Or(size_t i, Value fallback) const {
    return values_[i].value_or(fallback);
  }
  // Return the argument, or `fallback` if it is absent.
  // Errors: INVALID_ARGUMENT: the argument has another type, or exceeds 64
  // bits.
  absl::StatusOr<Text> TextOr(size_t i, absl::string_view fallback) const;
  absl::StatusOr<int64_t> IntegerOr(size_t i, int64_t fallback) const;
  // Returns the argument's truth.
  bool TruthOr(size_t i, bool fallback) const {
    return Has(i) ? (*this)[i].IsTrue() : fallback;
  }
  // Returns whether the argument is absent or none.
  bool AbsentOrNone(size_t i) const { return !Has(i) || (*this)[i].IsNone(); }

 private:
  BoundArguments() = default;
  absl::Status WrongType(size_t i, absl::string_view want) const;

  absl::string_view callee_;
  std::vector<absl::string_view> parameters_;
  std::vector<absl::optional<Value>> values_;
};

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_ARGUMENTS_H_
