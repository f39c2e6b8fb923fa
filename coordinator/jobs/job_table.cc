// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/job_table.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

std::string RandomPrefix() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random() & 0xffff, absl::kZeroPad4));
}

}  // namespace

JobTable::JobTable(Limits limits, absl::Time (*now)())
    : limits_(limits), now_(now), prefix_(RandomPrefix()) {}

std::string JobTable::NextId() {
  MutexLock lock(&mu_);
  while (true) {
    std::string id =
        absl::StrCat(prefix_, absl::Hex(++last_id_, absl::kZeroPad4));
    // A restored job may have the prefix.
    const bool taken = std::any_of(
        jobs_.begin(), jobs_.end(),
        [&id](const auto& entry) { return entry.second->id() == id; });
    if (!taken) return id;
  }
}

void JobTable::Add(std::shared_ptr<Job> job) {
  MutexLock lock(&mu_);
  jobs_.emplace(++added_, std::move(job));
  DropOld();
}

void JobTable::Remove(absl::string_view id) {
  MutexLock lock(&mu_);
  const auto it = std::find_if(
      jobs_.begin(), jobs_.end(),
      [id](const auto& entry) { return entry.second->id() == id; });
  if (it != jobs_.end()) jobs_.erase(it);
}

absl::StatusOr<std::shared_ptr<Job>> JobTable::Find(
    absl::string_view id) const {
  MutexLock lock(&mu_);
  DropOld();
  for (const auto& [unused, job] : jobs_) {
    if (job->id() == id) return job;
  }
  return absl::NotFoundError(absl::StrCat(
      "job ", id, ": no such job, or its result is no longer kept"));
}

std::vector<JobTable::Numbered> JobTable::ListAfter(uint64_t after) const {
  MutexLock lock(&mu_);
  DropOld();
  std::vector<Numbered> listed;
  for (auto it = jobs_.upper_bound(after); it != jobs_.end(); ++it) {
    if (it->second->request().listed) listed.push_back({it->first, it->second});
  }
  return listed;
}

void JobTable::DropOld() const {
  std::vector<std::pair<absl::Time, uint64_t>> ended;
  for (const auto& [number, job] : jobs_) {
    if (!job->kept()) continue;
    const JobProgress progress = job->progress();
    if (progress.has_ended()) ended.emplace_back(progress.ended, number);
  }
  std::sort(ended.begin(), ended.end());
  const size_t beyond =
      ended.size() > limits_.ended ? ended.size() - limits_.ended : 0;
  for (size_t i = 0; i < ended.size(); ++i) {
    if (i >= beyond && now_() - ended[i].first < limits_.age) break;
    jobs_.erase(ended[i].second);
  }
}

}  // namespace ringfleet::coordinator
