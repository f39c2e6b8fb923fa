// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

// Returns true for a control character, and for one at which some readers end a
// line.
bool IsControl(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0) ||
         code_point == 0x2028 || code_point == 0x2029;
}

}  // namespace

std::string OneLine(absl::string_view text) {
  std::string line;
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8(text);
    if (unit.kind != Utf8Unit::kCharacter) {
      AppendUtf8(0xFFFD, &line);
    } else if (IsControl(unit.code_point)) {
      line.push_back(' ');
    } else {
      absl::StrAppend(&line, text.substr(0, unit.size));
    }
    text.remove_prefix(unit.size);
  }
  return line;
}

std::string EscapeControls(std::string json) {
  const auto is_rare = [&json](size_t i) {
    const auto byte = static_cast<uint8_t>(json[i]);
    // U+0080 to U+009F are C2 80 to C2 9F.
    return byte == 0x7F || (byte == 0xC2 && i + 1 < json.size() &&
                            static_cast<uint8_t>(json[i + 1]) < 0xA0);
  };
  size_t first = 0;
  while (first < json.size() && !is_rare(first)) ++first;
  if (first == json.size()) return json;
  std::string escaped = json.substr(0, first);
  for (size_t i = first; i < json.size(); ++i) {
    if (!is_rare(i)) {
      escaped.push_back(json[i]);
      continue;
    }
    if (json[i] != '\x7f') ++i;
    absl::StrAppend(&escaped, "\\u",
                    absl::Hex(static_cast<uint8_t>(json[i]), absl::kZeroPad4));
  }
  return escaped;
}

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
