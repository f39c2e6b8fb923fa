// SPDX-License-Identifier: Apache-2.0
#include "worker/service/coordinator_fence.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"
#include "cluster/rpc/coordinator_id.h"

namespace ringfleet::worker {
namespace {

using std::chrono::steady_clock;

// Longest wait for a registration, which has 5 s for one attempt.
constexpr std::chrono::seconds kRegistrationWait{10};
// A call that waits looks this often whether its caller has left.
constexpr std::chrono::milliseconds kCallerPoll{100};

}  // namespace

void CoordinatorFence::BeginRegistration() {
  MutexLock lock(&mu_);
  registering_ = true;
}

void CoordinatorFence::EndRegistration(const std::string& id) {
  MutexLock lock(&mu_);
  registering_ = false;
  if (!id.empty()) id_ = id;
  changed_.NotifyAll();
}

absl::Status CoordinatorFence::Check(const grpc::ServerContext& context) {
  const std::string caller = cluster::CoordinatorIdOf(context);
  const auto deadline = steady_clock::now() + kRegistrationWait;
  MutexLock lock(&mu_);
  while (registering_ && !caller.empty() && caller != id_) {
    const auto now = steady_clock::now();
    if (now >= deadline || context.IsCancelled()) break;
    changed_.WaitUntil(&mu_, std::min(deadline, now + kCallerPoll));
  }
  return Judge(caller);
}

absl::Status CoordinatorFence::CheckNow(const grpc::ServerContext& context) {
  const std::string caller = cluster::CoordinatorIdOf(context);
  MutexLock lock(&mu_);
  return Judge(caller);
}

absl::Status CoordinatorFence::Judge(const std::string& caller) const {
  if (caller.empty() || id_.empty() || caller == id_) return absl::OkStatus();
  return cluster::SupersededError(absl::StrCat(
      "this worker has registered with coordinator ", id_.substr(0, 8),
      " and refuses calls of coordinator ", caller.substr(0, 8)));
}

}  // namespace ringfleet::worker
