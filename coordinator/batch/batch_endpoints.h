// SPDX-License-Identifier: Apache-2.0
// The batch API over HTTP: /v1/files and /v1/batches.
// coordinator/http/README.md lists what they take.
#ifndef RINGFLEET_COORDINATOR_BATCH_BATCH_ENDPOINTS_H_
#define RINGFLEET_COORDINATOR_BATCH_BATCH_ENDPOINTS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/batch/batch_host.h"
#include "coordinator/batch/batches.h"
#include "coordinator/http/http_routes.h"

namespace ringfleet::coordinator {

// A client sees the files and batches of its API key only.
class BatchEndpoints final : public HttpRoutes {
 public:
  static constexpr int kThreads = 2;

  // `batches` must outlive this object.
  explicit BatchEndpoints(Batches* batches);

  void Attach(HttpLoop* loop) override;
  void Detach() override;
  const HttpRoute* Find(absl::string_view path) const override;
  std::shared_ptr<HttpBodySink> OpenForm(
      const std::shared_ptr<HttpExchange>& exchange) override;
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override;

 private:
  using Text = absl::StatusOr<std::string>;

  // Runs work on a thread of the pool.
  void OnPool(const std::shared_ptr<HttpExchange>& exchange,
              std::function<void()> work);
  // Answers with the JSON that `read` makes of the store.
  void Reply(std::shared_ptr<HttpExchange> exchange,
             std::function<Text(Database&)> read);
  ApiError ErrorOfStore(const absl::Status& status) const;
  // Returns what answers with a batch or an error. For any thread.
  Batches::Created Responder(std::shared_ptr<HttpExchange> exchange);

  void ListFilesOf(std::shared_ptr<HttpExchange> exchange);
  void GetFile(std::shared_ptr<HttpExchange> exchange, const std::string& id);
  void GetContent(std::shared_ptr<HttpExchange> exchange,
                  const std::string& id);
  void DeleteFileOf(std::shared_ptr<HttpExchange> exchange,
                    const std::string& id);
  void ListBatchesOf(std::shared_ptr<HttpExchange> exchange);
  void CreateBatch(std::shared_ptr<HttpExchange> exchange);
  void GetBatch(std::shared_ptr<HttpExchange> exchange, const std::string& id);

  BatchHost host_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_BATCH_ENDPOINTS_H_
