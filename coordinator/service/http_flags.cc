// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/http_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {

void HttpFlags::Add(CLI::App& app,
                    std::initializer_list<CLI::Option*> by_file) {
  AccessOptions& access = options_.access;
  CLI::Option* const described[] = {
      app.add_option("--alias", options_.alias,
                     "Name of the model over HTTP [that of its folder]"),
      app.add_option("--api-key-file", access.api_key_file,
                     "File with lines NAME: KEY; HTTP clients show a key"),
      app.add_option("--tls-cert-file", access.tls_certificate_file,
                     "PEM file with the HTTP port's certificate"),
      app.add_option("--tls-key-file", access.tls_key_file,
                     "PEM file with its key"),
      app.add_option("--tls-client-ca-file", access.tls_client_ca_file,
                     "PEM file; HTTP clients show a certificate of it"),
      app.add_option("--cors-origins", access.cors_origins,
                     "Origins of browsers' pages that may use HTTP")
          ->delimiter(',')};
  for (CLI::Option* const option : described) {
    for (CLI::Option* const file : by_file) option->excludes(file);
  }
  app.add_option("--default-max-tokens", options_.default_max_tokens,
                 "Tokens of a chat over HTTP that sets no limit")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--key-jobs", options_.key_limits.jobs,
                 "Choices of one API key that wait or run at a time; 0: no "
                 "limit of its own")
      ->capture_default_str();
  app.add_option("--key-tokens", options_.key_limits.tokens,
                 "Tokens of one API key in flight, prompts and answers; 0: no "
                 "limit")
      ->capture_default_str();
  app.add_option("--drain", drain_,
                 "Time in which answers over HTTP may end after SIGTERM")
      ->capture_default_str();
}

absl::Status HttpFlags::Read(HttpOptions* options) const {
  RF_RETURN_IF_ERROR(Drain().status());
  options->default_max_tokens = options_.default_max_tokens;
  options->key_limits = options_.key_limits;
  if (!options_.alias.empty()) options->alias = options_.alias;
  const AccessOptions& access = options_.access;
  if (!access.api_key_file.empty() || !access.tls_certificate_file.empty() ||
      !access.tls_key_file.empty() || !access.tls_client_ca_file.empty() ||
      !access.cors_origins.empty()) {
    options->access = access;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> HttpFlags::Drain() const {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(drain_, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(drain_, &duration)) {
    duration = absl::InfiniteDuration();
  }
  if (duration >= absl::ZeroDuration() && duration <= absl::Hours(1)) {
    return duration;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "usage: --drain ", drain_, ", want a time from 0 to 1h, as in 30s"));
}

}  // namespace ringfleet::coordinator
