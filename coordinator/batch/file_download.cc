// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/file_download.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "cluster/process/file_error.h"
#include "cluster/process/log.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// Returns Content-Disposition of a file (RFC 6266, RFC 8187).
std::string DispositionOf(const std::string& name) {
  constexpr absl::string_view kPlain = "!#$&+-.^_`|~";
  std::string coded;
  for (const char c : name) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::StrContains(kPlain, c)) {
      coded += c;
    } else {
      absl::StrAppendFormat(&coded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return coded == name ? absl::StrCat("attachment; filename=\"", name, "\"")
                       : absl::StrCat("attachment; filename*=UTF-8''", coded);
}

}  // namespace

absl::StatusOr<std::shared_ptr<FileDownload>> FileDownload::Open(
    BatchHost* host, std::shared_ptr<HttpExchange> exchange, FileRecord file) {
  int descriptor = -1;
  if (file.batch.empty()) {
    const std::string path = host->batches->store().FilePath(file.id);
    descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return cluster::FileError(path, errno);
  }
  return std::shared_ptr<FileDownload>(
      new FileDownload(host, std::move(exchange), std::move(file), descriptor));
}

FileDownload::FileDownload(BatchHost* host,
                           std::shared_ptr<HttpExchange> exchange,
                           FileRecord file, int descriptor)
    : host_(host),
      exchange_(std::move(exchange)),
      file_(std::move(file)),
      descriptor_(descriptor) {}

FileDownload::~FileDownload() {
  if (descriptor_ >= 0) close(descriptor_);
}

void FileDownload::Begin() {
  exchange_->SetListener(weak_from_this());
  // A browser must not take an upload for a page.
  exchange_->BeginStream(
      {.content_type = "application/octet-stream",
       .headers = {{"X-Content-Type-Options", "nosniff"},
                   {"Content-Disposition", DispositionOf(file_.name)}},
       .stream_bytes = static_cast<uint64_t>(file_.bytes)});
  if (exchange_->request().method == "HEAD") return exchange_->EndStream();
  AskForPiece();
}

void FileDownload::OnSent() {
  if (const auto self = std::exchange(self_, nullptr)) self->AskForPiece();
}

void FileDownload::OnGone() {
  gone_ = true;
  self_.reset();
}

void FileDownload::AskForPiece() {
  if (!host_->pool.Post([self = shared_from_this()] { self->ReadPiece(); })) {
    exchange_->BreakStream("too many requests for files and batches");
  }
}

void FileDownload::ReadPiece() {
  auto piece = descriptor_ >= 0 ? NextBytes() : NextLines();
  host_->door->Post([self = shared_from_this(), piece = std::move(piece)] {
    self->Send(piece);
  });
}

absl::StatusOr<std::string> FileDownload::NextBytes() {
  const std::string path = host_->batches->store().FilePath(file_.id);
  std::string bytes(
      static_cast<size_t>(std::min(file_.bytes - position_, kDownloadPiece)),
      '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t read =
        pread(descriptor_, bytes.data() + got, bytes.size() - got,
              position_ + static_cast<int64_t>(got));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return cluster::FileError(path, errno);
    if (read == 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": ends before byte ", file_.bytes));
    }
    got += static_cast<size_t>(read);
  }
  position_ += static_cast<int64_t>(bytes.size());
  return bytes;
}

absl::StatusOr<std::string> FileDownload::NextLines() {
  std::string lines;
  bool more = true;
  // Lines whose file was deleted have no text.
  while (more && lines.empty()) {
    std::vector<OutputRecord> page;
    RF_RETURN_IF_ERROR(host_->batches->store().Read([this, &page](
                                                        Database& database) {
      OutputOptions options;
      options.order = OutputOptions::Order::kInput;
      options.after = position_;
      options.failed = file_.errors;
      options.most_bytes = kDownloadPiece;
      RF_ASSIGN_OR_RETURN(page, ListOutputs(database, file_.batch, options));
      return absl::OkStatus();
    }));
    more = !page.empty();
    for (const OutputRecord& line : page) lines += line.text;
    if (more) position_ = page.back().number;
  }
  sent_ += static_cast<int64_t>(lines.size());
  if (sent_ > file_.bytes) {
    return absl::DataLossError(absl::StrCat(
        "file ", file_.id, ": more than its ", file_.bytes, " bytes"));
  }
  if (lines.empty() && sent_ != file_.bytes) {
    return absl::NotFoundError(absl::StrCat("file ", file_.id,
                                            ": deleted after ", sent_, " of ",
                                            file_.bytes, " bytes"));
  }
  return lines;
}

void FileDownload::Send(const absl::StatusOr<std::string>& piece) {
  if (gone_) return;
  if (!piece.ok()) {
    RF_LOG(kWarning, "http ", exchange_->request().id, ": ",
           piece.status().message());
    return exchange_->BreakStream("the file cannot be read");
  }
  if (piece->empty()) return exchange_->EndStream();
  self_ = shared_from_this();
  exchange_->WriteBulk(*piece);
}

}  // namespace ringfleet::coordinator
