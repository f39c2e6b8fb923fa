// SPDX-License-Identifier: Apache-2.0
// The endpoints of the HTTP port: routes requests and answers the cheap ones.
// coordinator/http/README.md lists them.
#ifndef RINGFLEET_COORDINATOR_HTTP_API_H_
#define RINGFLEET_COORDINATOR_HTTP_API_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/http/access.h"
#include "coordinator/http/answer.h"
#include "coordinator/http/http_exchange.h"
#include "coordinator/http/http_routes.h"

namespace ringfleet::coordinator {

// For the I/O thread.
class Api final : public HttpHandler {
 public:
  // All arguments must outlive this object. `model_dir` may name a synthetic
  // model. `more`: further routes; null: none.
  Api(AnswerHost* host, const Access* access, std::string model_dir,
      HttpRoutes* more);

  std::optional<HttpResponse> OnHead(const HttpRequest& head,
                                     HttpLogFields* log) override;
  std::shared_ptr<HttpBodySink> OpenBody(
      const std::shared_ptr<HttpExchange>& exchange) override;
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override;
  void AddHeaders(const HttpRequest& request, HttpResponse* response) override;
  void OnEnd(const HttpRequest& request, int status,
             absl::Duration took) override;

 private:
  enum class Endpoint;
  struct Route;
  static const Route* FindOwn(const std::string& path);
  // Returns the route of a path, own or not. Null: none.
  const HttpRoute* Find(const std::string& path) const;

  std::optional<ApiError> Draining() const;
  // Says why no answer can begin.
  std::optional<ApiError> NotReady() const;
  HttpResponse Ready() const;
  HttpResponse ModelList(const HttpRequest& request) const;
  // Makes a response on a thread of the pool.
  void OnPool(std::shared_ptr<HttpExchange> exchange,
              std::function<HttpResponse(const HttpRequest&)> respond);

  AnswerHost* const host_;
  const Access* const access_;
  const std::string model_dir_;
  HttpRoutes* const more_;
  const int64_t created_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_API_H_
