// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/output.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

constexpr int kBarWidth = 24;

// Returns " 41 % |##########              |".
std::string ShareBar(uint64_t done, uint64_t total) {
  const double share =
      total == 0 ? 0 : std::min(1.0, static_cast<double>(done) / total);
  const int filled = static_cast<int>(share * kBarWidth);
  return absl::StrFormat("%3.0f %% |%s%s|", 100 * share,
                         std::string(filled, '#'),
                         std::string(kBarWidth - filled, ' '));
}

// Returns as much of a line as the terminal has room for: one that wraps cannot
// be cleared.
std::string FittingPart(const std::string& line) {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) {
    return line;
  }
  size_t end = 0;
  int columns = 0;
  while (end < line.size() && ++columns < size.ws_col) {
    end += NextUtf8(absl::string_view(line).substr(end)).size;
  }
  return line.substr(0, end);
}

}  // namespace

std::string HumanBytes(double bytes) {
  if (bytes >= 1e9) return absl::StrFormat("%.1f GB", bytes / 1e9);
  if (bytes >= 1e6) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.0f kB", bytes / 1e3);
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { Hide(); }

void Progress::Hide() {
  if (!terminal_ || !drawn_) return;
  std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void Progress::Draw(const std::string& text) {
  const std::string line = OneLine(text);
  if (line == last_) return;
  last_ = line;
  Show();
}

void Progress::Show() {
  if (!terminal_ || last_.empty()) return;
  const std::string line = FittingPart(last_);
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::Phase(absl::string_view text) { Draw(std::string(text)); }

void Progress::Share(uint64_t done, uint64_t total, absl::string_view text) {
  Draw(absl::StrCat(ShareBar(done, total), " ", text));
}

void Progress::Bytes(absl::string_view label, uint64_t done, uint64_t total,
                     absl::string_view more) {
  const auto now = std::chrono::steady_clock::now();
  if (!counting_) begun_ = now;
  counting_ = true;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const double rate = seconds > 0 ? done / seconds : 0;
  std::string line =
      absl::StrFormat("%s %s %s of %s", label, ShareBar(done, total),
                      HumanBytes(done), HumanBytes(total));
  if (rate > 0 && seconds > 0.5) {
    absl::StrAppendFormat(&line, "  %s/s  ETA %.0f s", HumanBytes(rate),
                          (total - std::min(done, total)) / rate);
  }
  if (!more.empty()) absl::StrAppend(&line, "  ", more);
  Draw(line);
}

}  // namespace ringfleet::coordinator::cli
