// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/http_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// Reads a time in Go's form or as a number of seconds.
absl::StatusOr<absl::Duration> ReadTime(absl::string_view flag,
                                        const std::string& text,
                                        absl::Duration least,
                                        absl::Duration most) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    duration = absl::InfiniteDuration();
  }
  if (duration >= least && duration <= most) return duration;
  return absl::InvalidArgumentError(
      absl::StrCat("usage: ", flag, " ", text, ", want a time from ",
                   absl::FormatDuration(least), " to ",
                   absl::ToInt64Hours(most), "h, as in 30s"));
}

}  // namespace

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
  app.add_option(
      "--request-timeout", request_timeout_,
      "Time in which an answer over HTTP ends, as in 10m [no limit]");
  app.add_option("--drain", drain_,
                 "Time in which answers over HTTP may end after SIGTERM")
      ->capture_default_str();
}

absl::Status HttpFlags::Read(HttpOptions* options) const {
  RF_RETURN_IF_ERROR(Drain().status());
  options->default_max_tokens = options_.default_max_tokens;
  options->key_limits = options_.key_limits;
  if (!request_timeout_.empty()) {
    RF_ASSIGN_OR_RETURN(options->request_timeout,
                        ReadTime("--request-timeout", request_timeout_,
                                 absl::Milliseconds(1), absl::Hours(24)));
  }
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
  return ReadTime("--drain", drain_, absl::ZeroDuration(), absl::Hours(1));
}

}  // namespace ringfleet::coordinator
