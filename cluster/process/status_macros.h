// SPDX-License-Identifier: Apache-2.0
// Early return on errors, and context for them. Debian's Abseil (20220623) has
// no status macros.
#ifndef RINGFLEET_CLUSTER_PROCESS_STATUS_MACROS_H_
#define RINGFLEET_CLUSTER_PROCESS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace ringfleet {

// Puts "context: " before the message and keeps the code. OK stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

}  // namespace ringfleet

#define RF_RETURN_IF_ERROR(expression)      \
  do {                                      \
    absl::Status rf_status_ = (expression); \
    if (!rf_status_.ok()) [[unlikely]]      \
      return rf_status_;                    \
  } while (false)

// RF_ASSIGN_OR_RETURN(auto x, F()): declares x from a StatusOr or returns.
#define RF_ASSIGN_OR_RETURN(lhs, expression) \
  RF_ASSIGN_OR_RETURN_(RF_CONCAT_(rf_result_, __LINE__), lhs, expression)
#define RF_ASSIGN_OR_RETURN_(result, lhs, expression) \
  auto result = (expression);                         \
  if (!result.ok()) [[unlikely]]                      \
    return result.status();                           \
  lhs = *std::move(result)
#define RF_CONCAT_(a, b) RF_CONCAT_INNER_(a, b)
#define RF_CONCAT_INNER_(a, b) a##b

#endif  // RINGFLEET_CLUSTER_PROCESS_STATUS_MACROS_H_
