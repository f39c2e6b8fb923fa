// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/fatal_signal.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

constexpr struct {
  int number;
  const char* cause;
} kCrashSignals[] = {
    {SIGBUS,
     ": bus error (SIGBUS): a file that is mapped into memory, such as a "
     "packed "
     "shard, was cut or cannot be read any more\n"},
    {SIGSEGV,
     ": segmentation fault (SIGSEGV): a defect, please report the stack\n"},
    {SIGABRT, ": aborted (SIGABRT): the lines above the stack say why\n"},
    {SIGFPE,
     ": arithmetic exception (SIGFPE): a defect, please report the stack\n"},
    {SIGILL,
     ": illegal instruction (SIGILL): the processor lacks an instruction of "
     "this build, or a defect\n"},
};

constexpr int kMaxFrames = 64;

const char* g_signalled = "";

// Writes `value` in decimal digits that end in front of `end`.
void PutDigits(int64_t value, int digits, char* end) {
  for (int i = 0; i < digits; ++i) {
    *--end = static_cast<char>('0' + value % 10);
    value /= 10;
  }
}

// Fills "YYYY-MM-DDTHH:MM:SS" of UTC; the C library's functions take locks.
// The date by H. Hinnant's civil_from_days.
void PutTime(int64_t seconds, char* text) {
  const int64_t days = seconds / 86400 + 719468;
  const int64_t era = days / 146097;
  const int64_t day_of_era = days - era * 146097;
  const int64_t year_of_era = (day_of_era - day_of_era / 1460 +
                               day_of_era / 36524 - day_of_era / 146096) /
                              365;
  const int64_t day_of_year =
      day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t shifted = (5 * day_of_year + 2) / 153;
  const int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
  PutDigits(year_of_era + era * 400 + (month <= 2 ? 1 : 0), 4, text + 4);
  PutDigits(month, 2, text + 7);
  PutDigits(day_of_year - (153 * shifted + 2) / 5 + 1, 2, text + 10);
  PutDigits(seconds % 86400 / 3600, 2, text + 13);
  PutDigits(seconds % 3600 / 60, 2, text + 16);
  PutDigits(seconds % 60, 2, text + 19);
}

iovec TextPart(const char* text) {
  return {const_cast<char*>(text), std::strlen(text)};
}

// Async-signal-safe.
void OnCrash(int number) {
  const char* cause = ": crashed\n";
  for (const auto& known : kCrashSignals) {
    if (known.number == number) cause = known.cause;
  }
  char time_text[] = "YYYY-MM-DDTHH:MM:SS";
  PutTime(time(nullptr), time_text);
  const iovec first[] = {TextPart(time_text), TextPart("Z E "),
                         TextPart(g_signalled),
                         TextPart(" crashed, with this stack:\n")};
  [[maybe_unused]] ssize_t written = writev(STDERR_FILENO, first, 4);
  void* frames[kMaxFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMaxFrames), STDERR_FILENO);
  const iovec last[] = {TextPart(g_signalled), TextPart(cause)};
  written = writev(STDERR_FILENO, last, 2);
  // The default action ends the process behind the handler, also if nothing in
  // the process raised the signal.
  raise(number);
}

}  // namespace

void ExplainCrashes(const char* program) {
  g_signalled = program;
  void* frame = nullptr;
  backtrace(&frame, 1);  // Loads what the handler could not.
  for (const auto& known : kCrashSignals) {
    struct sigaction action = {};
    RF_CHECK(sigaction(known.number, nullptr, &action) == 0);
    if (known.number != SIGBUS && action.sa_handler != SIG_DFL) continue;
    action = {};
    action.sa_handler = &OnCrash;
    action.sa_flags = SA_RESETHAND;
    RF_CHECK(sigaction(known.number, &action, nullptr) == 0);
  }
}

}  // namespace ringfleet::cluster
