// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cluster/process/deadline.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"
#include "coordinator/http/tls_identity.h"

namespace ringfleet::coordinator {
namespace {

constexpr uint64_t kMaxAccessFileBytes = uint64_t{1} << 20;
constexpr absl::Duration kLookInterval = absl::Seconds(1);

// Returns the identities of files. A missing file has none.
std::vector<cluster::FileReader::Identity> IdentitiesOf(
    const std::vector<std::string>& paths) {
  std::vector<cluster::FileReader::Identity> out;
  for (const std::string& path : paths) {
    const auto file = cluster::FileReader::Open(path);
    out.push_back(file.ok() ? file->identity()
                            : cluster::FileReader::Identity());
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Access>> Access::Open(AccessOptions options) {
  if (options.tls_certificate_file.empty() != options.tls_key_file.empty()) {
    return absl::InvalidArgumentError(
        "TLS: a certificate without a key or a key without a certificate, "
        "want both");
  }
  if (!options.tls_client_ca_file.empty() &&
      options.tls_certificate_file.empty()) {
    return absl::InvalidArgumentError(
        "TLS: authorities of clients without a certificate of the server, "
        "want both");
  }
  std::unique_ptr<Access> access(new Access(std::move(options)));
  {
    MutexLock lock(&access->reload_mu_);
    RF_RETURN_IF_ERROR(access->ReadKeys(&access->keys_seen_));
    RF_RETURN_IF_ERROR(access->ReadTls(&access->tls_seen_));
  }
  if (access->has_keys() || access->has_tls()) {
    access->watcher_ = std::thread([self = access.get()] { self->Watch(); });
  }
  return access;
}

Access::~Access() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (watcher_.joinable()) watcher_.join();
}

absl::Status Access::ReadKeys(Identities* seen) {
  if (!has_keys()) return absl::OkStatus();
  Identities found = IdentitiesOf({options_.api_key_file});
  if (found == *seen) return absl::OkStatus();
  *seen = std::move(found);
  const absl::Status status = TakeKeys();
  CountLoad(status.ok(), &Figures::keys);
  return status;
}

absl::Status Access::TakeKeys() {
  RF_ASSIGN_OR_RETURN(
      const std::string text,
      cluster::ReadSmallFile(options_.api_key_file, kMaxAccessFileBytes));
  absl::StatusOr<ApiKeys> keys = ApiKeys::Parse(text);
  RF_RETURN_IF_ERROR(Annotate(keys.status(), options_.api_key_file));
  MutexLock lock(&mu_);
  keys_ = std::make_shared<const ApiKeys>(*std::move(keys));
  return absl::OkStatus();
}

absl::Status Access::ReadTls(Identities* seen) {
  if (!has_tls()) return absl::OkStatus();
  std::vector<std::string> paths = {options_.tls_certificate_file,
                                    options_.tls_key_file};
  if (!options_.tls_client_ca_file.empty()) {
    paths.push_back(options_.tls_client_ca_file);
  }
  Identities found = IdentitiesOf(paths);
  if (found == *seen) return absl::OkStatus();
  *seen = std::move(found);
  const absl::Status status = TakeTls(paths);
  CountLoad(status.ok(), &Figures::tls);
  return status;
}

absl::Status Access::TakeTls(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths) {
    RF_ASSIGN_OR_RETURN(std::string text,
                        cluster::ReadSmallFile(path, kMaxAccessFileBytes));
    texts.push_back(std::move(text));
  }
  texts.resize(3);
  absl::StatusOr<HttpServer::TlsContext> context =
      MakeTlsContext(texts[0], texts[1], texts[2], absl::Now());
  RF_RETURN_IF_ERROR(Annotate(context.status(), options_.tls_certificate_file));
  MutexLock lock(&mu_);
  tls_ = *std::move(context);
  figures_.certificate_end = CertificateEnd(tls_);
  return absl::OkStatus();
}

void Access::CountLoad(bool taken, Loads Figures::*loads) {
  MutexLock lock(&mu_);
  ++(taken ? (figures_.*loads).taken : (figures_.*loads).refused);
}

Access::Figures Access::figures() const {
  MutexLock lock(&mu_);
  return figures_;
}

void Access::Reload() {
  MutexLock lock(&reload_mu_);
  for (const absl::Status& status :
       {ReadKeys(&keys_seen_), ReadTls(&tls_seen_)}) {
    if (status.ok()) continue;
    RF_LOG(kWarning, "http: ", status.message(), "; the last good state stays");
  }
}

void Access::Watch() {
  while (true) {
    const auto next = cluster::Deadline::After(kLookInterval);
    {
      MutexLock lock(&mu_);
      while (!stopping_ && !next.Expired()) {
        changed_.WaitUntil(&mu_, next.when());
      }
      if (stopping_) return;
    }
    Reload();
  }
}

absl::StatusOr<std::string> Access::KeyNameOf(
    const HttpRequest& request) const {
  if (!has_keys()) return "";
  std::shared_ptr<const ApiKeys> keys;
  {
    MutexLock lock(&mu_);
    keys = keys_;
  }
  absl::string_view key = request.Header("authorization");
  if (absl::StartsWithIgnoreCase(key, "bearer ")) {
    key.remove_prefix(7);
  } else {
    key = request.Header("x-api-key");
  }
  key = absl::StripAsciiWhitespace(key);
  if (key.empty()) {
    return absl::UnauthenticatedError(
        "no API key, want 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'");
  }
  std::optional<std::string> name = keys->NameOf(key);
  if (!name.has_value()) {
    return absl::UnauthenticatedError("not an API key of this server");
  }
  return *std::move(name);
}

HttpServer::TlsContext Access::tls() const {
  MutexLock lock(&mu_);
  return tls_;
}

void Access::AddCorsHeaders(const HttpRequest& request,
                            HttpResponse* response) const {
  if (options_.cors_origins.empty()) return;
  response->headers.push_back({"Vary", "Origin"});
  const absl::string_view origin = request.Header("origin");
  const auto lists = [this](absl::string_view wanted) {
    const auto& origins = options_.cors_origins;
    return std::find(origins.begin(), origins.end(), wanted) != origins.end();
  };
  if (origin.empty() || !(lists(origin) || lists("*"))) return;
  response->headers.push_back(
      {"Access-Control-Allow-Origin", std::string(origin)});
  if (lists(origin)) {  // A page of any origin gets no client certificate.
    response->headers.push_back({"Access-Control-Allow-Credentials", "true"});
  }
  response->headers.push_back({"Access-Control-Expose-Headers",
                               "x-request-id, retry-after, x-should-retry"});
  if (request.method != "OPTIONS") return;
  response->headers.push_back(
      {"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
  // OpenAI's client of browsers asks for a dozen headers of its own.
  const absl::string_view asked =
      request.Header("access-control-request-headers");
  response->headers.push_back(
      {"Access-Control-Allow-Headers",
       asked.empty() ? "Authorization, Content-Type, X-Api-Key, X-Request-Id"
                     : std::string(asked)});
  response->headers.push_back({"Access-Control-Max-Age", "600"});
}

}  // namespace ringfleet::coordinator
