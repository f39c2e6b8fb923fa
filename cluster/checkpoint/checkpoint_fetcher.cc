// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/checkpoint_fetcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/deadline.h"
#include "cluster/process/log.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "cluster/wire/crc32c.h"

namespace ringfleet::cluster {
namespace {

// Bytes of one call. They are so few that the call's time limit watches
// progress, and that the calls of several threads keep several sources busy.
constexpr uint64_t kCallBytes = 1 << 20;
// With that many calls under way another would only wait in the source's queue.
constexpr int kCallsPerPeer = 8;
constexpr std::chrono::milliseconds kFetchCancelledPoll{50};

std::shared_ptr<grpc::Channel> FetchChannel(const std::string& address) {
  grpc::ChannelArguments arguments = DirectArguments();
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return OpenChannel(address, arguments);
}

// Returns true if asking the same source again is of no use.
bool IsFinalAnswer(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

// A name that says nothing of a path: files of that name may be looked for in
// a folder of this host.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, "..") && !absl::StrContains(name, '\0');
}

absl::Status Unusable(const v1::ListFilesResponse& list) {
  if (list.fingerprint().empty()) {
    return absl::DataLossError("a list without a fingerprint");
  }
  for (const v1::ServedFile& file : list.files()) {
    if (!IsPlainName(file.name())) {
      return absl::DataLossError(absl::StrCat(
          "a file called \"", file.name(), "\", want a name without a folder"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct CheckpointFetcher::Peer {
  explicit Peer(const Source& from)
      : source(from),
        channel(FetchChannel(from.address)),
        stub(v1::CheckpointFiles::NewStub(channel)) {}

  // "worker 0 at node1:50052".
  std::string Description() const {
    return absl::StrCat(source.name, " at ", source.address);
  }

  const Source source;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::CheckpointFiles::Stub> stub;
  // Guarded by the fetcher's mu_.
  int calls = 0;
  absl::Status given_up;  // Why.
};

struct CheckpointFetcher::Attempt {
  absl::Status status;
  bool final = false;  // The source would say the same again.
};

CheckpointFetcher::CheckpointFetcher(CancellableCalls* calls,
                                     const Options& options)
    : calls_(calls), options_(options) {}

CheckpointFetcher::~CheckpointFetcher() = default;

absl::StatusOr<std::unique_ptr<CheckpointFetcher>> CheckpointFetcher::Open(
    const std::string& model, const std::vector<Source>& sources, int first,
    CancellableCalls* calls, const Options& options) {
  std::unique_ptr<CheckpointFetcher> fetcher(
      new CheckpointFetcher(calls, options));
  std::vector<std::string> failures;
  absl::Status last = absl::NotFoundError("no source");
  for (const Source& source : sources) {
    auto peer = std::make_unique<Peer>(source);
    grpc::ClientContext context;
    context.set_wait_for_ready(false);
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMicroseconds(options.list_time));
    v1::ListFilesRequest request;
    request.set_model(model);
    v1::ListFilesResponse list;
    absl::Status status;
    {
      const CancellableCalls::Scope call(calls, &context);
      AwaitConnection(*peer->channel);  // Without one, the call says why.
      status = FromGrpc(peer->stub->List(&context, request, &list));
    }
    if (calls->cancelled()) return absl::CancelledError("fetch: cancelled");
    if (status.ok()) status = Unusable(list);
    if (status.ok() && !fetcher->peers_.empty() &&
        list.fingerprint() != fetcher->fingerprint_) {
      status = absl::DataLossError(absl::StrCat(
          "another checkpoint: fingerprint ", list.fingerprint(), ", ",
          fetcher->peers_[0]->source.name, " has ", fetcher->fingerprint_));
    }
    if (!status.ok()) {
      failures.push_back(
          absl::StrCat(peer->Description(), ": ", status.message()));
      RF_LOG(kWarning, "fetch: nothing from ", failures.back());
      last = status;
      continue;
    }
    if (fetcher->peers_.empty()) {
      fetcher->fingerprint_ = list.fingerprint();
      for (const v1::ServedFile& file : list.files()) {
        fetcher->files_.push_back(
            {file.name(), file.bytes(), file.modified_ns()});
      }
      std::sort(fetcher->files_.begin(), fetcher->files_.end(),
                [](const File& a, const File& b) { return a.name < b.name; });
    }
    fetcher->peers_.push_back(std::move(peer));
  }
  if (fetcher->peers_.empty()) {
    return absl::Status(last.code(),
                        absl::StrCat(model, ": nobody to fetch it from: ",
                                     absl::StrJoin(failures, "; ")));
  }
  fetcher->first_ = first % fetcher->peers_.size();
  return fetcher;
}

const CheckpointFetcher::File* CheckpointFetcher::Find(
    absl::string_view name) const {
  const auto file = std::find_if(files_.begin(), files_.end(),
                                 [&](const File& f) { return f.name == name; });
  return file == files_.end() ? nullptr : &*file;
}

std::string CheckpointFetcher::SourceNames() const {
  return absl::StrJoin(peers_, ", ", [](std::string* out, const auto& peer) {
    absl::StrAppend(out, peer->source.name);
  });
}

CheckpointFetcher::Peer* CheckpointFetcher::Acquire() const {
  MutexLock lock(&mu_);
  while (!calls_->cancelled()) {
    Peer* best = nullptr;
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer* const peer = peers_[(first_ + i) % peers_.size()].get();
      if (peer->given_up.ok() &&
          (best == nullptr || peer->calls < best->calls)) {
        best = peer;
      }
    }
    if (best == nullptr) return nullptr;
    if (best->calls < kCallsPerPeer) {
      ++best->calls;
      return best;
    }
    changed_.WaitUntil(&mu_,
                       std::chrono::steady_clock::now() + kFetchCancelledPoll);
  }
  return nullptr;
}

void CheckpointFetcher::Release(Peer* peer) const {
  MutexLock lock(&mu_);
  --peer->calls;
  changed_.NotifyAll();
}

void CheckpointFetcher::GiveUp(Peer* peer, const absl::Status& why) const {
  MutexLock lock(&mu_);
  if (!peer->given_up.ok()) return;
  peer->given_up = why;
  RF_LOG(kWarning, "fetch: nothing more from ", peer->Description(), ": ",
         why.message());
}

absl::Status CheckpointFetcher::NobodyLeft(const v1::ReadFileRequest& request,
                                           uint64_t have) const {
  std::vector<std::string> failures;
  absl::StatusCode code = absl::StatusCode::kOk;
  MutexLock lock(&mu_);
  for (const auto& peer : peers_) {
    failures.push_back(
        absl::StrCat(peer->Description(), ": ", peer->given_up.message()));
    if (code != absl::StatusCode::kUnavailable) code = peer->given_up.code();
  }
  const uint64_t place = request.offset() +
                         have / request.size() * request.stride() +
                         have % request.size();
  return absl::Status(
      code, absl::StrCat("no source is left for byte ", place, " of ",
                         request.file(), ": ", absl::StrJoin(failures, "; ")));
}

CheckpointFetcher::Attempt CheckpointFetcher::ReadFrom(
    const Peer& peer, const v1::ReadFileRequest& request, absl::Duration limit,
    char* destination, uint64_t* have) const {
  const uint64_t total = request.size() * request.count();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMicroseconds(limit));
  const CancellableCalls::Scope call(calls_, &context);
  const auto reader = peer.stub->Read(&context, request);
  v1::FileChunk chunk;
  absl::Status damage;
  while (damage.ok() && *have < total && reader->Read(&chunk)) {
    const std::string& data = chunk.data();
    if (chunk.offset() != *have || data.empty() ||
        data.size() > total - *have) {
      damage = absl::DataLossError(
          absl::StrCat("a chunk of ", data.size(), " bytes at ", chunk.offset(),
                       ", want one at ", *have, " of ", total));
    } else if (ExtendCrc32c(0, data.data(), data.size()) != chunk.crc32c()) {
      damage = absl::DataLossError(absl::StrCat(
          "a damaged chunk (CRC-32C ",
          absl::Hex(ExtendCrc32c(0, data.data(), data.size()), absl::kZeroPad8),
          ", want ", absl::Hex(chunk.crc32c(), absl::kZeroPad8), ")"));
    } else {
      std::memcpy(destination + *have, data.data(), data.size());
      *have += data.size();
    }
  }
  if (!damage.ok()) context.TryCancel();
  const absl::Status status = FromGrpc(reader->Finish());
  if (*have == total) return {};
  if (!damage.ok()) return {damage};
  if (!status.ok()) return {status, IsFinalAnswer(status)};
  return {absl::DataLossError(
      absl::StrCat("the stream ended after ", *have, " bytes, want ", total))};
}

absl::Status CheckpointFetcher::ReadCall(v1::ReadFileRequest request,
                                         char* destination) const {
  const uint64_t total = request.size() * request.count();
  uint64_t have = 0;
  while (have < total) {
    Peer* const peer = Acquire();
    if (calls_->cancelled()) {
      if (peer != nullptr) Release(peer);
      return absl::CancelledError("fetch: cancelled");
    }
    if (peer == nullptr) return NobodyLeft(request, have);
    Deadline progress_by = Deadline::After(options_.no_progress);
    absl::Duration pause = options_.first_pause;
    for (int failures = 0; have < total && !calls_->cancelled();) {
      const uint64_t before = have;
      request.set_from(have);
      const Attempt attempt =
          ReadFrom(*peer, request, progress_by.Remaining(), destination, &have);
      if (have == total) break;
      if (have > before) {
        failures = 0;
        pause = options_.first_pause;
        progress_by = Deadline::After(options_.no_progress);
      } else if (!absl::IsResourceExhausted(attempt.status)) {
        ++failures;  // Unless others keep it busy, for which there is a limit.
      }
      if (attempt.final || failures >= options_.attempts ||
          progress_by.Expired()) {
        const std::string place =
            absl::StrCat(request.file(), ", byte ", have, " of ", total,
                         " from ", request.offset(), " on: ");
        GiveUp(peer,
               absl::Status(
                   attempt.status.code(),
                   absl::StrCat(place, attempt.status.message(),
                                attempt.final ? ""
                                              : absl::StrCat(" (", failures,
                                                             " attempts)"))));
        break;
      }
      calls_->Pause(std::min(pause, progress_by.Remaining()));
      if (failures > 0) pause *= 2;
    }
    Release(peer);
  }
  bytes_fetched_.fetch_add(total, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status CheckpointFetcher::Read(const std::string& file, uint64_t offset,
                                     uint64_t size, uint64_t stride,
                                     uint64_t count, char* destination) const {
  v1::ReadFileRequest request;
  request.set_fingerprint(fingerprint_);
  request.set_file(file);
  if (size >= kCallBytes) {
    // Ranges larger than a call, piece by piece.
    for (uint64_t done = 0; done < size * count;) {
      const uint64_t piece = std::min(kCallBytes, size - done % size);
      request.set_offset(offset + done / size * stride + done % size);
      request.set_size(piece);
      request.set_count(1);
      RF_RETURN_IF_ERROR(ReadCall(request, destination + done));
      done += piece;
    }
    return absl::OkStatus();
  }
  for (uint64_t range = 0; size > 0 && range < count;) {
    const uint64_t ranges = std::min(kCallBytes / size, count - range);
    request.set_offset(offset + range * stride);
    request.set_size(size);
    request.set_stride(stride);
    request.set_count(ranges);
    RF_RETURN_IF_ERROR(ReadCall(request, destination + range * size));
    range += ranges;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointFetcher::ReadWhole(
    const std::string& file, uint64_t max_bytes) const {
  const File* const found = Find(file);
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(file, ": no such file at ", SourceNames()));
  }
  if (found->size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ": ", found->size, " bytes, want at most ", max_bytes));
  }
  std::string content(found->size, '\0');
  RF_RETURN_IF_ERROR(
      Read(file, 0, content.size(), content.size(), 1, content.data()));
  return content;
}

}  // namespace ringfleet::cluster
