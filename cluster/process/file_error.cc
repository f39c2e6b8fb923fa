// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/file_error.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

absl::StatusCode CodeOfErrno(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
    case EEXIST:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status FileError(absl::string_view what, int error) {
  return absl::Status(CodeOfErrno(error),
                      absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace ringfleet::cluster
