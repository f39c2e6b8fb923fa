// SPDX-License-Identifier: Apache-2.0
// The memory of uploads and downloads, with an exchange that counts.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/batch/batch_upload.h"
#include "coordinator/batch/file_download.h"
#include "coordinator/batch/file_upload.h"
#include "coordinator/store/batch_table.h"
#include "kernels/mutex.h"
#include "tests/coordinator/http/fake_jobs.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/restrictions.h"
#include "tests/testing/soon.h"

namespace ringfleet::coordinator {
namespace {

// Runs functions on the thread of the test.
class TestLoop final : public HttpLoop {
 public:
  void Post(std::function<void()> function) override {
    MutexLock lock(&mu_);
    functions_.push_back(std::move(function));
    changed_.NotifyAll();
  }
  // Waits for a function, and runs it.
  void RunOne() {
    std::function<void()> function;
    {
      MutexLock lock(&mu_);
      while (functions_.empty()) {
        ASSERT_TRUE(changed_.WaitUntil(&mu_, testing::Soon().when()));
      }
      function = std::move(functions_.front());
      functions_.erase(functions_.begin());
    }
    function();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::function<void()>> functions_ ABSL_GUARDED_BY(mu_);
};

// Keeps the response. For the thread of the test.
class CountedExchange final : public HttpExchange {
 public:
  explicit CountedExchange(HttpRequest request)
      : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  HttpLogFields& log() override { return log_; }
  absl::Duration age() const override { return absl::ZeroDuration(); }
  void Respond(HttpResponse response) override {
    status = response.status;
    body = std::move(response.body);
  }
  void BeginStream(HttpResponse head) override { status = head.status; }
  void Write(absl::string_view bytes) override { WriteBulk(bytes); }
  void WriteBulk(absl::string_view bytes) override {
    last_piece = bytes.size();
    absl::StrAppend(&body, bytes);
  }
  void EndStream() override { ended = true; }
  void BreakStream(absl::string_view) override { broken = true; }
  void ResumeBody() override { ++resumed; }
  void SetListener(std::weak_ptr<HttpExchangeListener> listener) override {
    this->listener = std::move(listener);
  }

  int status = 0;
  std::string body;
  size_t last_piece = 0;
  bool ended = false, broken = false;
  int resumed = 0;
  std::weak_ptr<HttpExchangeListener> listener;

 private:
  const HttpRequest request_;
  HttpLogFields log_;
};

class FileTransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open({.folder = dir_.path(), .description = "test"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto model = ServedModel::Load(RINGFLEET_TEST_MODELS "/tiny-v3");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    BatchRunnerOptions runner;
    runner.store = store_.get();
    runner.model = model_.get();
    runner.jobs = &jobs_;
    batches_ = Batches::Start(runner);
    host_ = std::make_unique<BatchHost>();
    host_->batches = batches_.get();
    host_->door->Set(&loop_);
  }

  std::string Upload(const std::string& text) {
    auto upload = BatchUpload::Start(store_.get(), {.purpose = "batch"});
    EXPECT_TRUE(upload.ok()) << upload.status();
    EXPECT_EQ((*upload)->Append(text), absl::OkStatus());
    return (*upload)->Finish(batches_->upload_seconds())->id;
  }
  // A thread of the pool may hold it for a moment.
  static void ExpectLeft(const std::weak_ptr<FileDownload>& download) {
    const auto deadline = testing::Soon();
    while (!download.expired() && !deadline.Expired()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(download.expired());
  }
  // Plays a client that takes each piece. Returns the response.
  std::shared_ptr<CountedExchange> Download(const FileRecord& file,
                                            size_t most_piece) {
    const auto exchange =
        std::make_shared<CountedExchange>(HttpRequest{.method = "GET"});
    auto download = FileDownload::Open(host_.get(), exchange, file);
    EXPECT_TRUE(download.ok()) << download.status();
    (*download)->Begin();
    const std::weak_ptr<FileDownload> left = *download;
    download->reset();
    while (!exchange->ended && !exchange->broken) {
      const size_t before = exchange->body.size();
      loop_.RunOne();
      EXPECT_LE(exchange->body.size() - before, most_piece);
      if (const auto listener = exchange->listener.lock()) listener->OnSent();
    }
    ExpectLeft(left);
    return exchange;
  }

  testing::TempDir dir_;
  FakeJobs jobs_;
  TestLoop loop_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<BatchHost> host_;
};

TEST_F(FileTransferTest, ADownloadHoldsAPiece) {
  const std::string text(1'000'000, 'x');
  const std::string id = Upload(text);
  FileRecord file = {.id = id, .bytes = 1'000'000};
  EXPECT_TRUE(Download(file, kDownloadPiece)->body == text);
  // The disk has less than the record says.
  file.bytes = 2'000'000;
  EXPECT_TRUE(Download(file, kDownloadPiece)->broken);
}

TEST_F(FileTransferTest, OutputsComeInTheOrderOfTheInput) {
  constexpr int kLines = 100;
  BatchRecord batch;
  batch.id = "batch_test";
  batch.state = kBatchInProgress;
  std::string wanted;
  ASSERT_EQ(store_->WriteNow([&batch, &wanted](Database& database) {
    wanted.clear();
    batch.state = kBatchValidating;
    absl::Status status = InsertBatch(database, batch);
    std::vector<LineRecord> lines;
    for (int i = 1; i <= kLines; ++i) lines.push_back({.number = i});
    status.Update(BeginBatch(database, batch.id, lines, 1));
    for (int i = kLines; i >= 1; --i) {
      const std::string text = absl::StrCat(i, std::string(9000, '-'), "\n");
      if (i % 2 == 0) wanted = text + wanted;
      status.Update(
          InsertOutput(database, batch.id,
                       {.number = i, .failed = i % 2 != 0, .text = text}, {}));
    }
    return status;
  }),
            absl::OkStatus());
  FileRecord file = {.id = "file-x",
                     .bytes = static_cast<int64_t>(wanted.size()),
                     .batch = batch.id,
                     .errors = false};
  const auto exchange = Download(file, kDownloadPiece);
  EXPECT_TRUE(exchange->ended);
  EXPECT_TRUE(exchange->body == wanted);
  // A file that is deleted meanwhile does not look whole.
  file.bytes += 9000;
  const auto cut = Download(file, kDownloadPiece);
  EXPECT_TRUE(cut->broken);
  EXPECT_FALSE(cut->ended);
}

TEST_F(FileTransferTest, AClientThatGoesEndsItsDownload) {
  const FileRecord file = {.id = Upload(std::string(1'000'000, 'x')),
                           .bytes = 1'000'000};
  const auto exchange =
      std::make_shared<CountedExchange>(HttpRequest{.method = "GET"});
  auto download = FileDownload::Open(host_.get(), exchange, file);
  ASSERT_TRUE(download.ok());
  (*download)->Begin();
  (*download)->OnGone();
  const std::weak_ptr<FileDownload> left = *download;
  download->reset();
  loop_.RunOne();  // The piece comes late.
  ExpectLeft(left);
}

// While no thread of the pool is free, an upload takes a MiB and one piece.
TEST_F(FileTransferTest, AnUploadHoldsAMebibyte) {
  struct {
    Mutex mu;
    CondVar changed;
    bool released ABSL_GUARDED_BY(mu) = false;
  } gate;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(host_->pool.Post([&gate] {
      MutexLock lock(&gate.mu);
      while (!gate.released) gate.changed.Wait(&gate.mu);
    }));
  }
  HttpRequest request;
  request.method = "POST";
  request.headers = {{"Content-Type", "multipart/form-data; boundary=XyZ"}};
  const auto exchange = std::make_shared<CountedExchange>(std::move(request));
  auto upload = FileUpload::Start(host_.get(), exchange);
  ASSERT_NE(upload, nullptr);
  const std::string piece(64 << 10, 'x');
  EXPECT_TRUE(
      upload->Take("--XyZ\r\nContent-Disposition: form-data; name=file; "
                   "filename=f\r\n\r\n"));
  size_t taken = 0;
  do {
    taken += piece.size();
  } while (upload->Take(piece) && taken < 2 * kMostPendingUpload);
  EXPECT_LE(taken, kMostPendingUpload);
  EXPECT_EQ(exchange->resumed, 0);
  {
    MutexLock lock(&gate.mu);
    gate.released = true;
    gate.changed.NotifyAll();
  }
  loop_.RunOne();
  EXPECT_EQ(exchange->resumed, 1);
  upload->Take(
      "\r\n--XyZ\r\nContent-Disposition: form-data; "
      "name=purpose\r\n\r\nbatch\r\n--XyZ--");
  upload->OnEnd();
  while (exchange->status == 0) loop_.RunOne();
  EXPECT_EQ(exchange->status, 200);
  EXPECT_NE(exchange->body.find(absl::StrCat("\"bytes\":", taken)),
            std::string::npos);
  EXPECT_EQ(host_->uploads, 1);
  upload.reset();
}

TEST_F(FileTransferTest, AnUploadThatIsNotRecordedLeavesNoFile) {
  store_->Stop();
  auto upload = BatchUpload::Start(store_.get(), {.purpose = "batch"});
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_EQ((*upload)->Append("x"), absl::OkStatus());
  const std::filesystem::path folder = store_->FilePath("");
  EXPECT_FALSE(std::filesystem::is_empty(folder));
  EXPECT_TRUE(absl::IsCancelled(
      (*upload)->Finish(batches_->upload_seconds()).status()));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

// Pages that nobody has touched need no memory.
TEST_F(FileTransferTest, AnUploadHasAMostSize) {
  constexpr size_t kBytes = static_cast<size_t>(kMostFileBytes) + 1;
  void* const pages =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto upload = BatchUpload::Start(store_.get(), {.purpose = "batch"});
  ASSERT_TRUE(upload.ok()) << upload.status();
  EXPECT_TRUE(absl::IsInvalidArgument(
      (*upload)->Append({static_cast<const char*>(pages), kBytes})));
  munmap(pages, kBytes);
  upload->reset();
  EXPECT_TRUE(std::filesystem::is_empty(store_->FilePath("")));
}

TEST_F(FileTransferTest, AFullDiskRefusesAnUploadAndKeepsNothingOfIt) {
  const std::string folder = store_->FilePath("");
  const std::string why = testing::WithSmallDisk(folder, 1 << 20, [&] {
    BatchHost host;  // Its threads see the disk.
    host.batches = batches_.get();
    host.door->Set(&loop_);
    HttpRequest request;
    request.headers = {{"Content-Type", "multipart/form-data; boundary=XyZ"}};
    const auto exchange = std::make_shared<CountedExchange>(std::move(request));
    const auto upload = FileUpload::Start(&host, exchange);
    upload->Take("--XyZ\r\nContent-Disposition: form-data; name=file\r\n\r\n");
    for (int i = 0; i < 20; ++i) upload->Take(std::string(100'000, 'x'));
    while (exchange->status == 0) loop_.RunOne();
    EXPECT_EQ(exchange->status, 507);
    EXPECT_NE(exchange->body.find("No space left on device"),
              std::string::npos);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  });
  if (!why.empty()) GTEST_SKIP() << why;
}

}  // namespace
}  // namespace ringfleet::coordinator
