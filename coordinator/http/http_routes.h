// SPDX-License-Identifier: Apache-2.0
// Endpoints of the HTTP port that other rooms bring.
#ifndef RINGFLEET_COORDINATOR_HTTP_HTTP_ROUTES_H_
#define RINGFLEET_COORDINATOR_HTTP_HTTP_ROUTES_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "coordinator/http/http_exchange.h"

namespace ringfleet::coordinator {

// The methods and bodies of a path. OPTIONS is answered for all paths.
struct HttpRoute {
  // The body of a POST. kAny: its type is not looked at.
  enum class Body { kJson, kForm, kAny };

  // "/v1/files/{file_id}". Lasts as long as the program.
  absl::string_view name;
  bool gets = false;  // GET and HEAD.
  bool posts = false;
  bool deletes = false;
  Body body = Body::kJson;
  bool open = false;  // Needs no key.
};

// For the I/O thread, but for Attach and Detach.
class HttpRoutes {
 public:
  virtual ~HttpRoutes() = default;

  // Precedes all other calls. Responses go to `loop`.
  virtual void Attach(HttpLoop* loop) = 0;
  // Follows all other calls. Then `loop` is not used any more.
  virtual void Detach() = 0;

  // Returns the route of a path. Null: there is none.
  virtual const HttpRoute* Find(absl::string_view path) const = 0;
  // Returns what takes the form of a POST.
  virtual std::shared_ptr<HttpBodySink> OpenForm(
      const std::shared_ptr<HttpExchange>& exchange) = 0;
  // Answers any other request to a route.
  virtual void OnRequest(std::shared_ptr<HttpExchange> exchange) = 0;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_HTTP_ROUTES_H_
