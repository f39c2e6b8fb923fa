// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/interrupt.h"

namespace ringfleet::coordinator::cli {

absl::Status PrintText(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
      continue;
    }
    switch (errno) {
      case EINTR:
        break;
      case EAGAIN: {  // Whoever started this command made it so.
        pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
        poll(&out, 1, /*timeout=*/-1);
        break;
      }
      case EPIPE:
        Interrupt::Get().Request(kOutputClosedExit);
        return Interrupt::Get().status();
      default:
        return absl::ResourceExhaustedError(
            absl::StrCat("stdout: cannot be written: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator::cli
