// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kBarWidth = 24;

}  // namespace

std::string HumanBytes(double bytes) {
  if (bytes >= 1e9) return absl::StrFormat("%.1f GB", bytes / 1e9);
  if (bytes >= 1e6) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.0f kB", bytes / 1e3);
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { Clear(); }

void Progress::Clear() {
  if (!terminal_ || !drawn_) return;
  std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void Progress::Draw(const std::string& text) {
  const std::string line = OneLine(text);
  if (line == last_) return;
  last_ = line;
  if (!terminal_) return;
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::Phase(absl::string_view text) { Draw(std::string(text)); }

void Progress::Bytes(absl::string_view label, uint64_t done, uint64_t total,
                     absl::string_view more) {
  const auto now = std::chrono::steady_clock::now();
  if (!counting_) begun_ = now;
  counting_ = true;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const double share =
      total == 0 ? 0 : std::min(1.0, static_cast<double>(done) / total);
  const double rate = seconds > 0 ? done / seconds : 0;
  const int filled = static_cast<int>(share * kBarWidth);
  std::string line = absl::StrFormat("%s %3.0f %% |%s%s| %s of %s", label,
                                     100 * share, std::string(filled, '#'),
                                     std::string(kBarWidth - filled, ' '),
                                     HumanBytes(done), HumanBytes(total));
  if (rate > 0 && seconds > 0.5) {
    absl::StrAppendFormat(&line, "  %s/s  ETA %.0f s", HumanBytes(rate),
                          (total - std::min(done, total)) / rate);
  }
  if (!more.empty()) absl::StrAppend(&line, "  ", more);
  Draw(line);
}

}  // namespace ringfleet::coordinator::cli
