// SPDX-License-Identifier: Apache-2.0
// The command-line flags of the HTTP port.
#ifndef RINGFLEET_COORDINATOR_SERVICE_HTTP_FLAGS_H_
#define RINGFLEET_COORDINATOR_SERVICE_HTTP_FLAGS_H_

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/http/http_face.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ringfleet::coordinator {

// Flags as they were given. An object must not move until the command line is
// parsed.
class HttpFlags {
 public:
  // `drain`: its default, as in "30s".
  explicit HttpFlags(std::string drain) : drain_(std::move(drain)) {}

  // Adds all flags but those of the address. A flag that a cluster file has too
  // excludes `by_file`.
  void Add(CLI::App& app, std::initializer_list<CLI::Option*> by_file);

  // Sets what the flags say. INVALID_ARGUMENT: a time that is none.
  absl::Status Read(HttpOptions* options) const;
  // Returns the time in which answers may end. Errors: those of Read.
  absl::StatusOr<absl::Duration> Drain() const;

 private:
  HttpOptions options_;
  std::string drain_;
  std::string request_timeout_;  // Empty: none, or that of a cluster file.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_HTTP_FLAGS_H_
