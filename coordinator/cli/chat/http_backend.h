// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_CHAT_HTTP_BACKEND_H_
#define RINGFLEET_COORDINATOR_CLI_CHAT_HTTP_BACKEND_H_

#include <atomic>
#include <string>
#include <utility>

#include "coordinator/cli/chat/chat_api.h"
#include "coordinator/cli/chat/chat_backend.h"

namespace ringfleet::coordinator::cli {

// Asks a server of OpenAI's API, over TLS if the URL says so. The server's
// certificate must be one that this machine trusts (SSL_CERT_FILE names others)
// and have the URL's host.
class HttpBackend final : public ChatBackend {
 public:
  // `key` and `model` may be empty.
  HttpBackend(ApiUrl url, std::string key, std::string model)
      : url_(std::move(url)), key_(std::move(key)), model_(std::move(model)) {}

  absl::StatusOr<Generated> Ask(const v1::GenerateRequest& request,
                                const OnPiece& on_piece) override;
  void Stop() override { stopped_ = true; }

 private:
  const ApiUrl url_;
  const std::string key_;
  const std::string model_;
  std::atomic<bool> stopped_{false};  // During Ask.
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_CHAT_HTTP_BACKEND_H_
