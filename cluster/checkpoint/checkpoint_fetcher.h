// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FETCHER_H_
#define RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FETCHER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cluster/rpc/cancellable_calls.h"
#include "kernels/mutex.h"
#include "protos/checkpoint.grpc.pb.h"

namespace ringfleet::cluster {

// Reads a checkpoint's files from processes that serve CheckpointFiles. The
// checksum of each chunk verifies its bytes.
//
// A call asks for at most 1 MiB and goes to the source with the fewest running
// calls. If a stream breaks, stalls or has a damaged chunk, the fetcher asks
// the source again, from the first unverified byte on. After Options::attempts
// attempts or Options::no_progress of time without a new verified byte, the
// fetcher never uses the source again. Another source continues. Thread-safe.
class CheckpointFetcher {
 public:
  struct Source {
    std::string name;     // For messages: "worker 0".
    std::string address;  // HOST:PORT.
  };
  struct Options {
    // Time limit of a source's List call. The source looks at all its files,
    // which may lie on a slow disk.
    absl::Duration list_time = absl::Minutes(10);
    absl::Duration no_progress = absl::Seconds(30);
    int attempts = 5;
    absl::Duration first_pause = absl::Milliseconds(100);  // Doubles each time.
  };
  struct File {
    std::string name;
    uint64_t size = 0;
    int64_t modified_ns = 0;  // At the first source in use.
  };

  // Asks all sources for their files. Leaves out a source that does not answer,
  // or whose checkpoint differs from that of the first source in use. Among
  // equally busy sources, a call prefers source `first` modulo the number of
  // sources in use, then the following ones. So hosts with different `first`
  // use different sources. `calls` must outlive the fetcher. Cancelling `calls`
  // ends every function with CANCELLED.
  //
  // Errors: the last source's error, if no source can be used. The message
  // names all sources.
  static absl::StatusOr<std::unique_ptr<CheckpointFetcher>> Open(
      const std::string& model, const std::vector<Source>& sources, int first,
      CancellableCalls* calls, const Options& options);
  ~CheckpointFetcher();

  const std::vector<File>& files() const { return files_; }
  // Returns the file of this name, or null.
  const File* Find(absl::string_view name) const;
  // Returns the fingerprint of the whole checkpoint, equal on all sources.
  const std::string& fingerprint() const { return fingerprint_; }
  // Returns the names of the sources in use: "worker 0, the coordinator".
  std::string SourceNames() const;

  // Reads `count` ranges of `size` bytes into consecutive memory. Range i
  // begins at byte offset + i * stride of the file. All ranges must lie in the
  // file.
  //
  // Errors: CANCELLED. Any other error means that no source is left. The code
  // is UNAVAILABLE if any source was UNAVAILABLE, and else the last source's.
  // The message names the file, the byte and each source's failure.
  absl::Status Read(const std::string& file, uint64_t offset, uint64_t size,
                    uint64_t stride, uint64_t count, char* destination) const;

  // Returns a whole file. NOT_FOUND: no such file. INVALID_ARGUMENT: the file
  // is longer than `max_bytes`. Other errors: those of Read.
  absl::StatusOr<std::string> ReadWhole(const std::string& file,
                                        uint64_t max_bytes) const;

  // Returns the number of bytes read so far. Damaged and repeated bytes are not
  // counted.
  uint64_t bytes_fetched() const { return bytes_fetched_; }

 private:
  struct Peer;
  struct Attempt;

  CheckpointFetcher(CancellableCalls* calls, const Options& options);
  // Reads at most 1 MiB. `request` has all fields but `from`.
  absl::Status ReadCall(v1::ReadFileRequest request, char* destination) const;
  Attempt ReadFrom(const Peer& peer, const v1::ReadFileRequest& request,
                   absl::Duration limit, char* destination,
                   uint64_t* have) const;
  // Returns the peer with the fewest calls, and adds the caller's call to its
  // number. Returns null if no peer is left or `calls_` was cancelled.
  Peer* Acquire() const;
  void Release(Peer* peer) const;
  void GiveUp(Peer* peer, const absl::Status& why) const;
  absl::Status NobodyLeft(const v1::ReadFileRequest& request,
                          uint64_t have) const;

  CancellableCalls* const calls_;
  const Options options_;
  std::string fingerprint_;
  std::vector<File> files_;  // Sorted by name.
  std::vector<std::unique_ptr<Peer>> peers_;
  size_t first_ = 0;  // Index into peers_ at which Acquire starts.
  mutable std::atomic<uint64_t> bytes_fetched_ = 0;
  mutable Mutex mu_;
  mutable CondVar changed_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FETCHER_H_
