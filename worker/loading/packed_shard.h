// SPDX-License-Identifier: Apache-2.0
// A file with one rank's weights exactly as they lie in memory, to be mapped
// instead of being read, converted and packed again.
//
//   page 0   magic, format version, size of the file, place and XXH3-64 of the
//            table, XXH3-64 of this page; zeros
//   page 1   the matrices, one behind the other, each followed by zeros up to
//            the next page, so that each begins aligned for the kernels
//   then     the table, a v1::PackedShardTable, up to the end of the file
//
// A page has 4096 bytes, integers are little-endian. Hashes cover every byte:
// the table has one for each block of each matrix. They find damage but no
// malice: anyone who can write the file can change hashes, too.
#ifndef RINGFLEET_WORKER_LOADING_PACKED_SHARD_H_
#define RINGFLEET_WORKER_LOADING_PACKED_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"
#include "protos/packed_shard.pb.h"

namespace ringfleet::worker {

// Raised with every change to the format above.
inline constexpr uint32_t kPackedShardVersion = 1;

// One matrix to be written, or a vector as a matrix of one row of kF32.
// `data` belongs to the caller.
struct PackedPart {
  std::string name;
  kernels::WeightForm form = kernels::WeightForm::kF32;
  uint64_t rows = 0;
  uint64_t columns = 0;
  const char* data = nullptr;
  uint64_t bytes = 0;
};

// Told how many bytes of how many are done, on the calling thread. A non-OK
// status ends the work and is what it returns.
using PackedShardProgress =
    absl::FunctionRef<absl::Status(uint64_t done, uint64_t total)>;

// Bytes of the file without its table.
uint64_t PackedShardBytes(const std::vector<PackedPart>& parts);

// Writes such a file into `fd`, which is empty; the first page last, after the
// rest has reached the disk. Errors: those of the system, without a path.
absl::Status WritePackedShard(int fd, absl::string_view key,
                              const std::vector<PackedPart>& parts,
                              kernels::ThreadPool& pool,
                              PackedShardProgress progress);

// A file that is mapped. Nothing in it is believed before it has been checked.
// Immutable, thread-safe. The mapping stays while a matrix of it lives. A file
// that is renamed over or removed stays readable. A program that truncates the
// mapped file ends this process, and one that writes into it changes weights.
class PackedShard : public std::enable_shared_from_this<PackedShard> {
 public:
  // Checks everything but the matrices' bytes. Messages begin with the path.
  //
  // Errors: NOT_FOUND. FAILED_PRECONDITION: another version or another key, or
  // it cannot be opened or mapped. DATA_LOSS: damaged or truncated.
  static absl::StatusOr<std::shared_ptr<const PackedShard>> Open(
      const std::string& path, absl::string_view key);
  ~PackedShard();
  PackedShard(const PackedShard&) = delete;
  PackedShard& operator=(const PackedShard&) = delete;

  // Reads every byte of every matrix, with all threads, and compares the
  // hashes. DATA_LOSS names the first block that differs, or cannot be read,
  // and the matrices it belongs to.
  absl::Status Verify(kernels::ThreadPool& pool,
                      PackedShardProgress progress) const;

  size_t size() const { return matrices_.size(); }
  // Matrix `index`, which must be this one: DATA_LOSS says what is there
  // instead. Requires index < size().
  absl::StatusOr<kernels::WeightMatrix> Matrix(size_t index,
                                               absl::string_view name,
                                               kernels::WeightForm form,
                                               uint64_t rows,
                                               uint64_t columns) const;

  const std::string& path() const { return path_; }

 private:
  struct Entry {
    const v1::PackedMatrix* table = nullptr;
    kernels::WeightForm form = kernels::WeightForm::kF32;
    uint64_t offset = 0;
    uint64_t first_block = 0;
  };

  PackedShard() = default;
  absl::Status Map(int fd);
  absl::Status ReadHeader();
  absl::Status ReadTable(absl::string_view key);
  absl::Status CheckBlock(const Entry& entry, uint64_t block) const;
  absl::Status Damaged(absl::string_view what) const;

  std::string path_;
  const char* data_ = nullptr;
  uint64_t size_ = 0;  // The file's.
  uint64_t table_offset_ = 0;
  uint64_t num_blocks_ = 0;
  v1::PackedShardTable table_;
  std::vector<Entry> matrices_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_PACKED_SHARD_H_
