// SPDX-License-Identifier: Apache-2.0
// Access to the HTTP port: API keys, certificates, origins of browsers.
#ifndef RINGFLEET_COORDINATOR_HTTP_ACCESS_H_
#define RINGFLEET_COORDINATOR_HTTP_ACCESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/process/file_reader.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/http_message.h"
#include "coordinator/http/http_server.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

struct AccessOptions {
  std::string api_key_file;  // Empty: no key is asked for.
  // Empty: plain HTTP. Certificate and key go together.
  std::string tls_certificate_file, tls_key_file;
  std::string tls_client_ca_file;  // Empty: clients need no certificate.
  std::vector<std::string> cors_origins;
};

// Reads its files again when they change, at most a second later. A file that
// cannot be used is a warning in the log, and the state before it stays.
// Thread-safe.
class Access {
 public:
  // Errors: those of the files, with their path. INVALID_ARGUMENT: a
  // certificate without a key, or a client CA without a certificate.
  static absl::StatusOr<std::unique_ptr<Access>> Open(AccessOptions options);
  ~Access();

  bool has_keys() const { return !options_.api_key_file.empty(); }
  bool has_tls() const { return !options_.tls_certificate_file.empty(); }

  // Returns the name of the key that a request shows as `Authorization: Bearer
  // KEY` or `X-Api-Key: KEY`. Empty: keys are not asked for. UNAUTHENTICATED:
  // no key or another one.
  absl::StatusOr<std::string> KeyNameOf(const HttpRequest& request) const;

  // Returns what a new connection takes; null: plain.
  HttpServer::TlsContext tls() const;

  // Lets a browser's page of a listed origin read the response.
  void AddCorsHeaders(const HttpRequest& request, HttpResponse* response) const;

  // Looks at the files, and takes over what has changed.
  void Reload();

  // The reads of a group of files since Open, which is the first one.
  struct Loads {
    uint64_t taken = 0;
    uint64_t refused = 0;
  };
  struct Figures {
    Loads keys;
    Loads tls;
    std::optional<absl::Time> certificate_end;  // Absent: no TLS.
  };
  Figures figures() const;

 private:
  using Identities = std::vector<cluster::FileReader::Identity>;

  explicit Access(AccessOptions options) : options_(std::move(options)) {}
  // Read a group of files if one of them differs from `seen`, which is updated.
  // Return what is wrong.
  absl::Status ReadKeys(Identities* seen);
  absl::Status ReadTls(Identities* seen);
  // Read a group of files.
  absl::Status TakeKeys();
  absl::Status TakeTls(const std::vector<std::string>& paths);
  void CountLoad(bool taken, Loads Figures::*loads);
  void Watch();

  const AccessOptions options_;

  Mutex reload_mu_;  // Held over a look at the files.
  Identities keys_seen_ ABSL_GUARDED_BY(reload_mu_);
  Identities tls_seen_ ABSL_GUARDED_BY(reload_mu_);

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const ApiKeys> keys_ ABSL_GUARDED_BY(mu_);
  HttpServer::TlsContext tls_ ABSL_GUARDED_BY(mu_);
  Figures figures_ ABSL_GUARDED_BY(mu_);
  std::thread watcher_;  // Only where there are files.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_ACCESS_H_
