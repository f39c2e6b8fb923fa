// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_PROGRESS_H_
#define RINGFLEET_COORDINATOR_CLI_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::cli {

// Returns "1.3 GB", "2.0 MB" or "17 kB".
std::string HumanBytes(double bytes);

// A progress line on stderr, which each call draws again in place. Draws
// nothing if stderr is not a terminal. Cuts a text that is wider than the
// terminal. The destructor clears the line.
class Progress {
 public:
  Progress();
  ~Progress();

  // Shows a text, such as "waiting for workers, 1 of 2".
  void Phase(absl::string_view text);
  // Shows the progress of `done` of `total` bytes, such as "loading  41 %
  // |######      | 1.3 GB of 3.2 GB  410.0 MB/s  ETA 5 s", then `more`.
  void Bytes(absl::string_view label, uint64_t done, uint64_t total,
             absl::string_view more = "");
  // Shows the share `done` of `total`, such as " 41 % |######      | ", then
  // `text`.
  void Share(uint64_t done, uint64_t total, absl::string_view text);

  // Clears the line, so that others can write, and draws it again.
  void Hide();
  void Show();
  bool on_terminal() const { return terminal_; }

 private:
  void Draw(const std::string& text);

  const bool terminal_;
  std::string last_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begun_;
  bool counting_ = false;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_PROGRESS_H_
