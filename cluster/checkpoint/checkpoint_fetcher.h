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
// A call asks for at most 1 MiB and goes to the source with the fewest calls at
// the moment. A stream may break, stall or bring a damaged chunk. The fetcher
// then asks again from the first unverified byte. A source is given up for good
// after `attempts` attempts, or `no_progress` of time, without progress.
// Another source continues. Thread-safe.
class CheckpointFetcher {
 public:
  struct Source {
    std::string name;     // "worker 0": for messages.
    std::string address;  // HOST:PORT.
  };
  struct Options {
    // Limit for a source to look at all its files, which may lie on a slow
    // disk.
    absl::Duration list_time = absl::Minutes(10);
    absl::Duration no_progress = absl::Seconds(30);
    int attempts = 5;
    absl::Duration first_pause = absl::Milliseconds(100);  // Then doubled.
  };
  struct File {
    std::string name;
    uint64_t size = 0;
    int64_t modified_ns = 0;  // On the first source.
  };

  // Asks all sources for their files. A source is left out if it does not
  // answer, or if its checkpoint differs from the first answering source's.
  // Among equally busy sources, calls prefer source `first` modulo the number
  // of sources, so that several hosts use different sources. `calls` must
  // outlive the fetcher. Its cancellation ends everything with CANCELLED.
  //
  // Errors: those of the sources, if no source is of use. The message names all
  // sources.
  static absl::StatusOr<std::unique_ptr<CheckpointFetcher>> Open(
      const std::string& model, const std::vector<Source>& sources, int first,
      CancellableCalls* calls, const Options& options);
  ~CheckpointFetcher();

  const std::vector<File>& files() const { return files_; }
  // Returns null if there is no such file.
  const File* Find(absl::string_view name) const;
  // The fingerprint of the whole checkpoint, alike on all sources.
  const std::string& fingerprint() const { return fingerprint_; }
  // "worker 0, the coordinator": the sources in use.
  std::string SourceNames() const;

  // Reads `count` ranges of `size` bytes that begin `stride` bytes apart and
  // lie in the file, and stores them one behind the other.
  //
  // Errors: no source is left. The message names the file, the byte and each
  // source's failure. The code is UNAVAILABLE if the failure may pass, else the
  // last source's. CANCELLED.
  absl::Status Read(const std::string& file, uint64_t offset, uint64_t size,
                    uint64_t stride, uint64_t count, char* destination) const;

  // Reads a whole file. Errors: NOT_FOUND; INVALID_ARGUMENT if it is longer
  // than `max_bytes`; those of Read.
  absl::StatusOr<std::string> ReadWhole(const std::string& file,
                                        uint64_t max_bytes) const;

  // Returns the bytes that were delivered. Damaged and repeated bytes do not
  // count.
  uint64_t bytes_fetched() const { return bytes_fetched_; }

 private:
  struct Peer;
  struct Attempt;

  CheckpointFetcher(CancellableCalls* calls, const Options& options);
  // Reads up to 1 MiB. `request` has all fields but `from`.
  absl::Status ReadCall(v1::ReadFileRequest request, char* destination) const;
  Attempt ReadFrom(const Peer& peer, const v1::ReadFileRequest& request,
                   absl::Duration limit, char* destination,
                   uint64_t* have) const;
  // Returns the peer with the fewest calls, and counts the caller's call. Null:
  // all peers were given up, or everything is cancelled.
  Peer* Acquire() const;
  void Release(Peer* peer) const;
  void GiveUp(Peer* peer, const absl::Status& why) const;
  absl::Status NobodyLeft(const v1::ReadFileRequest& request,
                          uint64_t have) const;

  CancellableCalls* const calls_;
  const Options options_;
  std::string fingerprint_;
  std::vector<File> files_;  // By name.
  std::vector<std::unique_ptr<Peer>> peers_;
  size_t first_ = 0;  // Index into peers_: first of those with fewest calls.
  mutable std::atomic<uint64_t> bytes_fetched_ = 0;
  mutable Mutex mu_;
  mutable CondVar changed_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FETCHER_H_
