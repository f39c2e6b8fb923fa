// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/key_loads.h"

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

ApiError TooMuch(absl::string_view what, uint64_t limit) {
  return {.status = 429,
          .message = absl::StrCat("the key's limit of ", limit, " ", what,
                                  " is reached; try again later"),
          .code = kRateLimit,
          .retry_after_s = 1};
}

}  // namespace

std::optional<ApiError> KeyLoads::Add(const std::string& key, uint64_t tokens,
                                      const KeyLimits& limits) {
  MutexLock lock(&mu_);
  const auto it = loads_.find(key);
  const Load now = it == loads_.end() ? Load() : it->second;
  if (limits.jobs > 0 && now.jobs + 1 > limits.jobs) {
    return TooMuch("choices that wait or run", limits.jobs);
  }
  if (limits.tokens > 0 && now.jobs > 0 &&
      now.tokens + tokens > limits.tokens) {
    return TooMuch("tokens in flight", limits.tokens);
  }
  loads_[key] = {.jobs = now.jobs + 1, .tokens = now.tokens + tokens};
  return std::nullopt;
}

void KeyLoads::Remove(const std::string& key, uint64_t tokens) {
  MutexLock lock(&mu_);
  const auto it = loads_.find(key);
  --it->second.jobs;
  it->second.tokens -= tokens;
  if (it->second.jobs == 0) loads_.erase(it);
}

}  // namespace ringfleet::coordinator
