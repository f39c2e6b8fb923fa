// SPDX-License-Identifier: Apache-2.0
// Log lines with a level, on stderr or in a file:
//   2026-01-31T12:00:00.123Z I worker 2 link.cc:87] message
// Thread-safe. The packaged Abseil has no absl/log.
#ifndef RINGFLEET_CLUSTER_PROCESS_LOG_H_
#define RINGFLEET_CLUSTER_PROCESS_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Appends lines of `least` and above to the file `path`; "": to stderr. A file
// of more than 64 MiB becomes PATH.1, in place of the one before. Messages of
// Protobuf and errors of gRPC are lines too, one of each every ten seconds at
// most. gRPC's other messages are lines where GRPC_VERBOSITY asks for them.
absl::Status InitLog(absl::string_view path, LogLevel least);
// Names this process in its lines: "worker 2".
void SetLogName(absl::string_view name);
bool LogEnabled(LogLevel level);
void Log(LogLevel level, const char* file, int line, absl::string_view text);

}  // namespace ringfleet::cluster

// RF_LOG(kInfo, "listening on ", port): arguments as for absl::StrCat.
#define RF_LOG(level, ...)                                           \
  do {                                                               \
    using ::ringfleet::cluster::LogLevel;                            \
    if (::ringfleet::cluster::LogEnabled(LogLevel::level)) {         \
      ::ringfleet::cluster::Log(LogLevel::level, __FILE__, __LINE__, \
                                absl::StrCat(__VA_ARGS__));          \
    }                                                                \
  } while (false)

#endif  // RINGFLEET_CLUSTER_PROCESS_LOG_H_
