// SPDX-License-Identifier: Apache-2.0
// A file with one rank's weights, byte for byte as they lie in memory. A worker
// maps the file and need not read, convert and pack the checkpoint again.
//
//   page 0       magic, format version, size of the file, offset and XXH3-64 of
//                the table, XXH3-64 of page 0; zeros
//   from page 1  the matrices, one after the other. Zeros follow each matrix up
//                to the next page, so each matrix begins aligned for the
//                kernels.
//   then         the table, a v1::PackedShardTable, up to the end of the file
//
// A page has 4096 bytes. Integers are little-endian. Hashes cover every byte of
// the file; the table has one hash for each block of each matrix. Hashes detect
// damage. They do not detect an attack, because an attacker who can write the
// file can also change its hashes.
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

// Version of the format above. Every change to the format raises the version.
inline constexpr uint32_t kPackedShardVersion = 1;

// One matrix to write. A vector is a matrix of one row of kF32. `data` belongs
// to the caller.
struct PackedPart {
  std::string name;
  kernels::WeightForm form = kernels::WeightForm::kF32;
  uint64_t rows = 0;
  uint64_t columns = 0;
  const char* data = nullptr;
  uint64_t bytes = 0;
};

// Called on the calling thread with the number of bytes done so far and of all
// bytes. A non-OK status ends the operation, which returns the status.
using PackedShardProgress =
    absl::FunctionRef<absl::Status(uint64_t done, uint64_t total)>;

// Returns the bytes of the file without its table.
uint64_t PackedShardBytes(const std::vector<PackedPart>& parts);

// Writes a packed shard into the empty file `fd`. Writes page 0 last, after the
// other pages have reached the disk. Errors: those of cluster::FileError,
// without a path; a status from `progress`.
absl::Status WritePackedShard(int fd, absl::string_view key,
                              const std::vector<PackedPart>& parts,
                              kernels::ThreadPool& pool,
                              PackedShardProgress progress);

// A packed shard that is mapped into memory. Every value of the file is checked
// before its first use. Immutable, thread-safe. The mapping lives as long as a
// matrix that lies in it. The mapping stays readable after the file was removed
// or replaced by a rename. A program that truncates the file ends this process.
// A program that writes to the file changes the weights.
class PackedShard : public std::enable_shared_from_this<PackedShard> {
 public:
  // Maps the file and checks page 0 and the table. Does not read the matrices.
  // Error messages begin with the path.
  //
  // Errors: NOT_FOUND: there is no file. FAILED_PRECONDITION: the file has
  // another version or another key, or cannot be opened or mapped. DATA_LOSS:
  // the file is damaged or truncated.
  static absl::StatusOr<std::shared_ptr<const PackedShard>> Open(
      const std::string& path, absl::string_view key);
  ~PackedShard();
  PackedShard(const PackedShard&) = delete;
  PackedShard& operator=(const PackedShard&) = delete;

  // Reads every byte of every matrix with all threads of `pool`, and compares
  // hashes.
  // Errors: DATA_LOSS: a block differs from its hash or cannot be read. The
  // message names the first such block and its matrices. A status from
  // `progress`.
  absl::Status Verify(kernels::ThreadPool& pool,
                      PackedShardProgress progress) const;

  // Number of matrices.
  size_t size() const { return matrices_.size(); }
  // Returns matrix `index`, counted from 0. Requires index < size().
  // Errors: DATA_LOSS: the matrix has another name, another form or another
  // number of rows or columns. The message names both matrices.
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
  uint64_t size_ = 0;  // Bytes of the file.
  uint64_t table_offset_ = 0;
  uint64_t num_blocks_ = 0;
  v1::PackedShardTable table_;
  std::vector<Entry> matrices_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_LOADING_PACKED_SHARD_H_
