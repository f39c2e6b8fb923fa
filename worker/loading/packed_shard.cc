// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/packed_shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxh_x86dispatch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"
#include "kernels/mutex.h"

namespace ringfleet::worker {
namespace {

using cluster::FileError;
using kernels::WeightForm;

constexpr uint64_t kFilePage = 4096;
// Bytes that one hash covers: enough for a small table, and few enough to give
// every thread work and to tell where damage is.
constexpr uint64_t kHashedBytes = uint64_t{1} << 20;
// Blocks that a thread writes or checks between two reports of progress.
constexpr uint64_t kBlocksPerBatch = 16;
constexpr uint64_t kMaxTableBytes = uint64_t{1} << 30;
constexpr char kMagic[8] = {'R', 'F', 'S', 'H', 'A', 'R', 'D', '\n'};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t page_bytes;
  uint64_t file_bytes;
  uint64_t table_offset;
  uint64_t table_bytes;
  uint64_t table_hash;
  uint64_t page_hash;  // Covers page 0, with 0 here.
};
static_assert(sizeof(Header) == 56 &&
              std::endian::native == std::endian::little);

using Page = std::array<char, kFilePage>;

// Page 0, hashed.
Page MakePage(Header header) {
  Page page = {};
  header.page_hash = 0;
  std::memcpy(page.data(), &header, sizeof(header));
  header.page_hash = XXH3_64bits(page.data(), page.size());
  std::memcpy(page.data(), &header, sizeof(header));
  return page;
}

constexpr uint64_t kMaximum = std::numeric_limits<uint64_t>::max();

// Up to whole pages; saturates.
uint64_t Padded(uint64_t bytes) {
  return bytes > kMaximum - kFilePage
             ? kMaximum
             : (bytes + kFilePage - 1) / kFilePage * kFilePage;
}

uint64_t CountBlocks(uint64_t bytes) {
  return bytes / kHashedBytes + (bytes % kHashedBytes != 0);
}

absl::Status WriteAll(int fd, uint64_t offset, const char* data,
                      uint64_t size) {
  while (size > 0) {
    const ssize_t written = pwrite(fd, data, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FileError("write", written < 0 ? errno : ENOSPC);
    data += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

// Calls body(index) for [0, count) on all threads; the error of the lowest
// index, if there is one. `body` is told to stop by nothing but the end.
absl::Status ForEach(kernels::ThreadPool& pool, uint64_t count,
                     absl::FunctionRef<absl::Status(uint64_t)> body) {
  Mutex mu;
  uint64_t failed_at = kMaximum;
  absl::Status failure;
  pool.ParallelFor(count, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const absl::Status status = body(i);
      if (status.ok()) continue;
      MutexLock lock(&mu);
      if (i < failed_at) {
        failed_at = i;
        failure = status;
      }
      return;
    }
  });
  return failure;
}

// Sends what is written on its way to the disk, some MiB at a time, and waits
// for what it sent before. So the flush at the end is short, no wait is long,
// and a slow disk does not fill the host's memory with what it has yet to
// write.
class WriteBehind {
 public:
  explicit WriteBehind(int fd) : fd_(fd) {}

  // The file is written up to `end`.
  void Advance(uint64_t end) {
    constexpr uint64_t kAtOnce = uint64_t{32} << 20;
    if (end < sent_ + kAtOnce) return;
    static_cast<void>(sync_file_range(fd_, static_cast<off_t>(sent_),
                                      static_cast<off_t>(end - sent_),
                                      SYNC_FILE_RANGE_WRITE));
    if (sent_ > 0) {
      static_cast<void>(sync_file_range(fd_, 0, static_cast<off_t>(sent_),
                                        SYNC_FILE_RANGE_WAIT_BEFORE));
    }
    sent_ = end;
  }

 private:
  const int fd_;
  uint64_t sent_ = 0;
};

// A block of a part with the zeros that follow it.
absl::Status WriteBlock(int fd, const PackedPart& part, uint64_t offset,
                        uint64_t block, uint64_t* hash) {
  const uint64_t begin = block * kHashedBytes;
  const uint64_t size = std::min(kHashedBytes, part.bytes - begin);
  if (size % kFilePage == 0) {
    *hash = XXH3_64bits(part.data + begin, size);
    return WriteAll(fd, offset + begin, part.data + begin, size);
  }
  std::vector<char> padded(Padded(size));
  std::memcpy(padded.data(), part.data + begin, size);
  *hash = XXH3_64bits(padded.data(), padded.size());
  return WriteAll(fd, offset + begin, padded.data(), padded.size());
}

absl::Status WritePart(int fd, const PackedPart& part, uint64_t offset,
                       kernels::ThreadPool& pool, WriteBehind& behind,
                       absl::FunctionRef<absl::Status(uint64_t)> advance,
                       v1::PackedMatrix* entry) {
  std::vector<uint64_t> hashes(CountBlocks(part.bytes));
  const uint64_t batch = kBlocksPerBatch * pool.threads();
  for (uint64_t first = 0; first < hashes.size(); first += batch) {
    const uint64_t count = std::min<uint64_t>(batch, hashes.size() - first);
    RF_RETURN_IF_ERROR(ForEach(pool, count, [&](uint64_t i) {
      return WriteBlock(fd, part, offset, first + i, &hashes[first + i]);
    }));
    const uint64_t begin = first * kHashedBytes;
    const uint64_t end = std::min(part.bytes, (first + count) * kHashedBytes);
    behind.Advance(offset + end);
    RF_RETURN_IF_ERROR(advance(end - begin));
  }
  entry->mutable_hashes()->Assign(hashes.begin(), hashes.end());
  return absl::OkStatus();
}

absl::StatusOr<WeightForm> ParseForm(absl::string_view name) {
  for (const WeightForm form :
       {WeightForm::kF32, WeightForm::kBf16, WeightForm::kInt8,
        WeightForm::kInt4, WeightForm::kF32Rows, WeightForm::kBf16Rows}) {
    if (name == kernels::WeightFormName(form)) return form;
  }
  return absl::DataLossError(absl::StrCat("a form of ", name));
}

}  // namespace

uint64_t PackedShardBytes(const std::vector<PackedPart>& parts) {
  uint64_t bytes = kFilePage;
  for (const PackedPart& part : parts) bytes += Padded(part.bytes);
  return bytes;
}

absl::Status WritePackedShard(int fd, absl::string_view key,
                              const std::vector<PackedPart>& parts,
                              kernels::ThreadPool& pool,
                              PackedShardProgress progress) {
  const uint64_t table_offset = PackedShardBytes(parts);
  // A full disk is found here where the file system can reserve.
  if (fallocate(fd, 0, 0, static_cast<off_t>(table_offset)) != 0 &&
      errno != EOPNOTSUPP && errno != EINTR && errno != ENOSYS) {
    return FileError(absl::StrCat("reserve ", table_offset, " bytes"), errno);
  }
  v1::PackedShardTable table;
  table.set_key(std::string(key));
  table.set_block_bytes(kHashedBytes);
  WriteBehind behind(fd);
  uint64_t offset = kFilePage;
  uint64_t done = 0;
  uint64_t total = 0;
  for (const PackedPart& part : parts) total += part.bytes;
  RF_RETURN_IF_ERROR(progress(0, total));
  for (const PackedPart& part : parts) {
    v1::PackedMatrix* entry = table.add_matrices();
    entry->set_name(part.name);
    entry->set_form(std::string(kernels::WeightFormName(part.form)));
    entry->set_rows(part.rows);
    entry->set_columns(part.columns);
    entry->set_bytes(part.bytes);
    const auto advance = [&](uint64_t bytes) {
      done += bytes;
      return progress(done, total);
    };
    RF_RETURN_IF_ERROR(
        WritePart(fd, part, offset, pool, behind, advance, entry));
    offset += Padded(part.bytes);
  }
  const std::string text = table.SerializeAsString();
  RF_RETURN_IF_ERROR(WriteAll(fd, offset, text.data(), text.size()));
  if (fdatasync(fd) != 0) return FileError("flush", errno);
  Header header = {.version = kPackedShardVersion,
                   .page_bytes = kFilePage,
                   .file_bytes = offset + text.size(),
                   .table_offset = offset,
                   .table_bytes = text.size(),
                   .table_hash = XXH3_64bits(text.data(), text.size())};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  const Page page = MakePage(header);
  RF_RETURN_IF_ERROR(WriteAll(fd, 0, page.data(), page.size()));
  if (fsync(fd) != 0) return FileError("flush", errno);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const PackedShard>> PackedShard::Open(
    const std::string& path, absl::string_view key) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": can't open: ", std::strerror(errno)));
  }
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  const std::shared_ptr<PackedShard> shard(new PackedShard());
  shard->path_ = path;
  RF_RETURN_IF_ERROR(shard->Map(fd));
  RF_RETURN_IF_ERROR(shard->ReadHeader());
  RF_RETURN_IF_ERROR(shard->ReadTable(key));
  return shard;
}

PackedShard::~PackedShard() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
}

absl::Status PackedShard::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", what));
}

absl::Status PackedShard::Map(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": not a regular file"));
  }
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ < kFilePage) {
    return Damaged(absl::StrCat(size_, " bytes, want at least ", kFilePage));
  }
  void* address = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": can't map: ", std::strerror(errno)));
  }
  data_ = static_cast<const char*>(address);
  return absl::OkStatus();
}

absl::Status PackedShard::ReadHeader() {
  Header header;
  std::memcpy(&header, data_, sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return Damaged("not a packed shard, or not completely written");
  }
  const Page page = MakePage(header);
  if (std::memcmp(page.data(), data_, page.size()) != 0) {
    return Damaged("bytes [0, 4096) differ from their hash");
  }
  if (header.version != kPackedShardVersion || header.page_bytes != kFilePage) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": format version ", header.version, ", want ",
                     kPackedShardVersion));
  }
  if (header.file_bytes != size_) {
    return Damaged(
        absl::StrCat("truncated: ", size_, " bytes, want ", header.file_bytes));
  }
  if (header.table_offset < kFilePage || header.table_offset % kFilePage != 0 ||
      header.table_offset > size_ ||
      header.table_bytes != size_ - header.table_offset ||
      header.table_bytes > kMaxTableBytes) {
    return Damaged(absl::StrCat("a table of ", header.table_bytes, " bytes at ",
                                header.table_offset,
                                ", want it "
                                "to end at ",
                                size_));
  }
  table_offset_ = header.table_offset;
  const char* table = data_ + table_offset_;
  if (XXH3_64bits(table, header.table_bytes) != header.table_hash) {
    return Damaged(absl::StrCat("table, bytes [", table_offset_, ", ", size_,
                                "), differs from its hash"));
  }
  if (!table_.ParseFromArray(table, static_cast<int>(header.table_bytes))) {
    return Damaged("the table cannot be parsed");
  }
  return absl::OkStatus();
}

absl::Status PackedShard::ReadTable(absl::string_view key) {
  if (table_.key() != key) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": packed for ", table_.key(), ", want ", key));
  }
  if (table_.block_bytes() != kHashedBytes) {
    return Damaged(absl::StrCat("blocks of ", table_.block_bytes(),
                                " bytes, want ", kHashedBytes));
  }
  uint64_t offset = kFilePage;
  for (const v1::PackedMatrix& matrix : table_.matrices()) {
    Entry entry = {
        .table = &matrix, .offset = offset, .first_block = num_blocks_};
    const absl::StatusOr<WeightForm> form = ParseForm(matrix.form());
    if (!form.ok()) {
      return Damaged(
          absl::StrCat(matrix.name(), ": ", form.status().message()));
    }
    entry.form = *form;
    const uint64_t blocks = CountBlocks(matrix.bytes());
    if (matrix.bytes() != kernels::WeightMatrix::Bytes(*form, matrix.rows(),
                                                       matrix.columns()) ||
        Padded(matrix.bytes()) > table_offset_ - offset ||
        static_cast<uint64_t>(matrix.hashes_size()) != blocks) {
      return Damaged(absl::StrCat(
          matrix.name(), ": ", matrix.form(), " [", matrix.rows(), ", ",
          matrix.columns(), "] of ", matrix.bytes(), " bytes and ",
          matrix.hashes_size(), " hashes does not fit"));
    }
    offset += Padded(matrix.bytes());
    num_blocks_ += blocks;
    matrices_.push_back(entry);
  }
  if (offset != table_offset_) {
    return Damaged(
        absl::StrCat("matrices up to byte ", offset, ", want ", table_offset_));
  }
  return absl::OkStatus();
}

absl::Status PackedShard::CheckBlock(const Entry& entry, uint64_t block) const {
  const uint64_t begin = block * kHashedBytes;
  const uint64_t size =
      Padded(std::min(kHashedBytes, entry.table->bytes() - begin));
  const char* data = data_ + entry.offset + begin;
  const auto place = [&] {
    return absl::StrCat(entry.table->name(), ", bytes [", entry.offset + begin,
                        ", ", entry.offset + begin + size, ")");
  };
#ifdef MADV_POPULATE_READ
  // Maps a block's pages at once, and turns what would be a SIGBUS into an
  // error. A kernel without it maps them one by one.
  if (madvise(const_cast<char*>(data), size, MADV_POPULATE_READ) != 0 &&
      (errno == EFAULT || errno == EHWPOISON)) {
    return Damaged(absl::StrCat(place(), " cannot be read"));
  }
#endif
  if (XXH3_64bits(data, size) != entry.table->hashes(static_cast<int>(block))) {
    return Damaged(absl::StrCat(place(), " differ from their hash"));
  }
  return absl::OkStatus();
}

absl::Status PackedShard::Verify(kernels::ThreadPool& pool,
                                 PackedShardProgress progress) const {
  uint64_t total = 0;
  for (const Entry& entry : matrices_) total += entry.table->bytes();
  RF_RETURN_IF_ERROR(progress(0, total));
  const uint64_t batch = kBlocksPerBatch * pool.threads();
  for (uint64_t first = 0; first < num_blocks_; first += batch) {
    const uint64_t count = std::min(batch, num_blocks_ - first);
    RF_RETURN_IF_ERROR(ForEach(pool, count, [&](uint64_t i) {
      const uint64_t block = first + i;
      // The last matrix that begins at or before it and is not empty.
      auto entry = std::upper_bound(
          matrices_.begin(), matrices_.end(), block,
          [](uint64_t b, const Entry& e) { return b < e.first_block; });
      --entry;
      return CheckBlock(*entry, block - entry->first_block);
    }));
    RF_RETURN_IF_ERROR(
        progress(std::min(total, (first + count) * kHashedBytes), total));
  }
  return progress(total, total);
}

absl::StatusOr<kernels::WeightMatrix> PackedShard::Matrix(
    size_t index, absl::string_view name, WeightForm form, uint64_t rows,
    uint64_t columns) const {
  const Entry& entry = matrices_[index];
  const v1::PackedMatrix& matrix = *entry.table;
  if (matrix.name() != name || entry.form != form || matrix.rows() != rows ||
      matrix.columns() != columns) {
    return Damaged(absl::StrCat(
        matrix.name(), ": ", matrix.form(), " [", matrix.rows(), ", ",
        matrix.columns(), "], want ", name, ": ", kernels::WeightFormName(form),
        " [", rows, ", ", columns, "]"));
  }
  return kernels::WeightMatrix::View(form, rows, columns, data_ + entry.offset,
                                     shared_from_this());
}

}  // namespace ringfleet::worker
