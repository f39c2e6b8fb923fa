// SPDX-License-Identifier: Apache-2.0
// The response to GET /v1/files/{file_id}/content. The pool reads a piece after
// the client has taken the one before.
#ifndef RINGFLEET_COORDINATOR_BATCH_FILE_DOWNLOAD_H_
#define RINGFLEET_COORDINATOR_BATCH_FILE_DOWNLOAD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/batch/batch_host.h"
#include "coordinator/http/http_exchange.h"
#include "coordinator/store/file_table.h"

namespace ringfleet::coordinator {

// Bytes of a piece, but for a line that is longer.
inline constexpr int64_t kDownloadPiece = int64_t{256} << 10;

class FileDownload final : public HttpExchangeListener,
                           public std::enable_shared_from_this<FileDownload> {
 public:
  // Opens the file. For threads that may wait for the disk. `host` must outlive
  // the download. Errors: those of FileError.
  static absl::StatusOr<std::shared_ptr<FileDownload>> Open(
      BatchHost* host, std::shared_ptr<HttpExchange> exchange, FileRecord file);
  ~FileDownload() override;

  // Begins the response. For the I/O thread.
  void Begin();

  void OnSilence() override {}
  void OnSent() override;
  void OnGone() override;

 private:
  FileDownload(BatchHost* host, std::shared_ptr<HttpExchange> exchange,
               FileRecord file, int descriptor);
  void AskForPiece();
  void ReadPiece();  // On a thread of the pool.
  // Return the next bytes; none: the end.
  absl::StatusOr<std::string> NextBytes();
  absl::StatusOr<std::string> NextLines();
  void Send(const absl::StatusOr<std::string>& piece);

  BatchHost* const host_;
  const std::shared_ptr<HttpExchange> exchange_;
  const FileRecord file_;
  const int descriptor_;  // An upload's; -1: the store has the lines.
  int64_t position_ = 0;  // Bytes, or the number of the last line.
  int64_t sent_ = 0;      // Bytes of lines.
  bool gone_ = false;     // The client, for the I/O thread.
  std::shared_ptr<FileDownload> self_;  // While the client takes a piece.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_FILE_DOWNLOAD_H_
