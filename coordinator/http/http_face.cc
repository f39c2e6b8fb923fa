// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/http_face.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

constexpr int kWorkThreads = 2;
constexpr size_t kMaxQueuedWork = 1024;
constexpr std::chrono::milliseconds kDrainPoll{20};

// Returns "tiny-v3" of "/models/tiny-v3/".

}  // namespace

std::string ServedName(const std::string& alias, absl::string_view model_dir) {
  if (!alias.empty()) return alias;
  while (absl::ConsumeSuffix(&model_dir, "/")) {
  }
  const size_t slash = model_dir.rfind('/');
  return std::string(slash == absl::string_view::npos
                         ? model_dir
                         : model_dir.substr(slash + 1));
}

absl::StatusOr<std::unique_ptr<HttpFace>> HttpFace::Start(
    const HttpOptions& options, const ServedModel* model,
    const std::string& model_dir, JobSource* jobs) {
  std::unique_ptr<HttpFace> face(new HttpFace());
  face->address_ = options.listen;
  RF_ASSIGN_OR_RETURN(face->access_, Access::Open(options.access));
  Access* const access = face->access_.get();
  if (!cluster::IsLoopback(options.listen.host) && !options.allow_insecure &&
      !(access->has_tls() && access->has_keys())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "http: ", options.listen.host,
        " is not a loopback address, want one, or TLS with API keys, or "
        "--insecure to listen there unprotected"));
  }
  std::function<HttpServer::TlsContext()> tls;
  if (access->has_tls()) tls = [access] { return access->tls(); };
  RF_ASSIGN_OR_RETURN(
      face->server_,
      HttpServer::Listen(options.listen, options.limits, std::move(tls)));
  face->address_.port = face->server_->port();
  face->pool_ = std::make_unique<WorkPool>(kWorkThreads, kMaxQueuedWork);
  AnswerHost& host = face->host_;
  host.model = model;
  host.jobs = jobs;
  host.loop = face->server_->loop();
  host.pool = face->pool_.get();
  host.metrics = &face->metrics_;
  host.served_name = ServedName(options.alias, model_dir);
  host.default_max_tokens = options.default_max_tokens;
  host.most_jobs = options.most_jobs;
  host.key_limits = options.key_limits;
  host.request_timeout = options.request_timeout;
  face->routes_ = options.routes;
  if (face->routes_ != nullptr) face->routes_->Attach(host.loop);
  face->api_ = std::make_unique<Api>(&host, access, model_dir, face->routes_);
  face->server_->Run(face->api_.get());
  RF_LOG(kInfo, "http: listening on ", face->url(), " for model '",
         host.served_name, "'");
  return face;
}

HttpFace::~HttpFace() { Stop(absl::ZeroDuration()); }

std::string HttpFace::url() const {
  return absl::StrCat(access_->has_tls() ? "https://" : "http://",
                      cluster::FormatAddress(address_));
}

bool HttpFace::Drain(cluster::Deadline deadline) {
  if (server_ == nullptr) return true;  // Stopped.
  host_.draining = true;
  server_->CloseAfterResponses();
  while (host_.answers > 0) {
    if (deadline.Expired()) return false;
    std::this_thread::sleep_for(kDrainPoll);
  }
  return true;
}

void HttpFace::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;
  host_.draining = true;
  server_->Stop(grace);
  pool_.reset();
  if (routes_ != nullptr) routes_->Detach();
  server_.reset();
}

}  // namespace ringfleet::coordinator
