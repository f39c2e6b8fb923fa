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

// Reads a checkpoint's files from processes that serve CheckpointFiles, each
// byte verified by the checksum of its chunk.
//
// A call asks for at most 1 MiB and goes to the source with the fewest calls at
// that moment. When a stream breaks, stalls or brings a damaged chunk, the rest
// is asked for again, from the first byte that has not been verified; a source
// that gets no further in `attempts` attempts or `no_progress` of time is given
// up for good, and the next one carries on. Thread-safe.
class CheckpointFetcher {
 public:
  struct Source {
    std::string name;     // "worker 0": for messages.
    std::string address;  // HOST:PORT.
  };
  struct Options {
    // Until a source has looked at all its files, which may lie on a slow disk.
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

  // Asks all sources what they have. Those that don't answer, and those with
  // another checkpoint than the first that does, are left out. Begins with
  // source `first` modulo their number, so that several hosts spread theirs.
  // `calls`, which must outlive the fetcher, ends everything with CANCELLED.
  //
  // Errors: those of the sources, when none is of use: names all of them.
  static absl::StatusOr<std::unique_ptr<CheckpointFetcher>> Open(
      const std::string& model, const std::vector<Source>& sources, int first,
      CancellableCalls* calls, const Options& options);
  ~CheckpointFetcher();

  const std::vector<File>& files() const { return files_; }
  // Null when there is no such file.
  const File* Find(absl::string_view name) const;
  // What all sources say that the whole checkpoint has.
  const std::string& fingerprint() const { return fingerprint_; }
  // "worker 0, the coordinator": those that are of use.
  std::string SourceNames() const;

  // `count` ranges of `size` bytes that begin `stride` bytes apart, stored one
  // behind the other; they must lie in the file.
  //
  // Errors: no source is left: names the file, the byte, and what was wrong
  // with each. UNAVAILABLE if that may pass, else the code of the last.
  // CANCELLED.
  absl::Status Read(const std::string& file, uint64_t offset, uint64_t size,
                    uint64_t stride, uint64_t count, char* destination) const;

  // A whole file of at most `max_bytes`; NOT_FOUND, INVALID_ARGUMENT.
  absl::StatusOr<std::string> ReadWhole(const std::string& file,
                                        uint64_t max_bytes) const;

  // That were delivered. What was damaged or came twice is not counted.
  uint64_t bytes_fetched() const { return bytes_fetched_; }

 private:
  struct Peer;
  struct Attempt;

  CheckpointFetcher(CancellableCalls* calls, const Options& options);
  // Up to 1 MiB. `request` says what, but for `from`.
  absl::Status ReadCall(v1::ReadFileRequest request, char* destination) const;
  Attempt ReadFrom(const Peer& peer, const v1::ReadFileRequest& request,
                   absl::Duration limit, char* destination,
                   uint64_t* have) const;
  // The peer with the fewest calls, one of which is now the caller's; null when
  // all were given up, or everything is cancelled.
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
  size_t first_ = 0;  // Of peers_, before others with as many calls.
  mutable std::atomic<uint64_t> bytes_fetched_ = 0;
  mutable Mutex mu_;
  mutable CondVar changed_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CHECKPOINT_CHECKPOINT_FETCHER_H_
