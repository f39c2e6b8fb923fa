// SPDX-License-Identifier: Apache-2.0
// The body of POST /v1/files on its way to the store's folder.
//
//   I/O thread: Take -> pending bytes -> pool: form -> file -> I/O: response
#ifndef RINGFLEET_COORDINATOR_BATCH_FILE_UPLOAD_H_
#define RINGFLEET_COORDINATOR_BATCH_FILE_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/batch/batch_host.h"
#include "coordinator/batch/batch_upload.h"
#include "coordinator/batch/multipart.h"
#include "coordinator/http/http_exchange.h"
#include "kernels/mutex.h"

namespace ringfleet::coordinator {

// Bytes of one upload that wait for the pool before the connection reads no
// further. The last read may exceed them.
inline constexpr size_t kMostPendingUpload = size_t{1} << 20;
inline constexpr int kMostUploads = 16;  // At a time.

class FileUpload final : public HttpBodySink,
                         public HttpExchangeListener,
                         public std::enable_shared_from_this<FileUpload> {
 public:
  // Answers the exchange and returns null if the head asks for something else.
  // `host` must outlive the upload.
  static std::shared_ptr<FileUpload> Start(
      BatchHost* host, const std::shared_ptr<HttpExchange>& exchange);
  ~FileUpload() override;

  uint64_t most_bytes() const override;
  bool Take(std::string bytes) override;
  void OnEnd() override;
  void OnSilence() override {}
  void OnGone() override;

 private:
  class Form;

  FileUpload(BatchHost* host, std::shared_ptr<HttpExchange> exchange,
             absl::string_view boundary);
  // Lets the pool work, unless it does. For the I/O thread.
  void Wake();
  void Work();  // On a thread of the pool.
  // Takes the next bytes, and the end once they are the last ones. Returns the
  // response, if there is one.
  std::optional<HttpResponse> Read(absl::string_view bytes, bool end);

  BatchHost* const host_;
  const std::shared_ptr<HttpExchange> exchange_;

  // For the thread of the pool that works.
  const std::unique_ptr<Form> form_;
  MultipartReader reader_;

  Mutex mu_;
  std::string pending_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool full_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  // The exchange is answered, or its client has gone.
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_FILE_UPLOAD_H_
