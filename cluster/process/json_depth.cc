// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/json_depth.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {

absl::Status CheckJsonDepth(absl::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;  // A quotation mark after it does not end the string.
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) {
        return absl::InvalidArgumentError(
            absl::StrCat("nested too deeply at byte ", i, ", want at most ",
                         kMaxJsonDepth, " levels of arrays and objects"));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
