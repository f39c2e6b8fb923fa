// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/collectives_bench.h"

#include <time.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "cluster/process/status_macros.h"

namespace ringfleet::worker {
namespace {

using Clock = std::chrono::steady_clock;

// OSU's counts: messages to 64 KiB are repeated more often.
constexpr uint64_t kSmallBytes = 64 << 10;
struct Counts {
  int warm_up;
  int timed;
};
Counts CountsFor(uint64_t bytes) {
  return bytes <= kSmallBytes ? Counts{100, 1000} : Counts{10, 100};
}
// Least iterations, however long one takes: a median needs some.
constexpr int kLeastIterations = 5;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Returns the CPU time of all threads of this process, user and kernel.
double ProcessCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

// Returns the smallest value of `sorted` that at least a fraction `quantile` of
// the values does not exceed.
double Percentile(const std::vector<double>& sorted, double quantile) {
  const double position =
      std::ceil(quantile * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(position, 1.0)) - 1];
}

}  // namespace

template <typename T>
absl::StatusOr<std::vector<T>> CollectivesBench::Gather(
    cluster::Communicator& control, const T* values, size_t count) {
  const size_t ranks = static_cast<size_t>(control.size());
  const size_t bytes = count * sizeof(T);
  std::vector<uint64_t> offsets(ranks + 1);
  for (size_t r = 0; r <= ranks; ++r) offsets[r] = r * bytes;
  gathered_.resize(ranks * bytes);
  char* const own = gathered_.data() + offsets[control.rank()];
  if (bytes > 0) std::memcpy(own, values, bytes);
  RF_RETURN_IF_ERROR(control.AllGather(absl::Span<const char>(own, bytes),
                                       absl::MakeSpan(gathered_), offsets,
                                       Soon()));
  std::vector<T> all(ranks * count);
  if (!all.empty()) std::memcpy(all.data(), gathered_.data(), ranks * bytes);
  return all;
}

absl::StatusOr<CollectivesBench::Report> CollectivesBench::Verify(
    cluster::Communicator& control) {
  case_->Reset();
  RF_RETURN_IF_ERROR(control.Barrier(Soon()));
  const Clock::time_point begin = Clock::now();
  RF_RETURN_IF_ERROR(case_->Run(/*way=*/0, Soon()));
  Report mine;
  mine.seconds = Seconds(Clock::now() - begin);
  mine.wrong = case_->CountWrong();
  mine.hash = case_->ResultHash();
  RF_ASSIGN_OR_RETURN(const std::vector<Report> all, Gather(control, &mine, 1));
  Report merged{.hash = all[0].hash};
  std::vector<uint64_t> hashes;
  for (const Report& report : all) {
    merged.seconds = std::max(merged.seconds, report.seconds);
    merged.wrong += report.wrong;
    hashes.push_back(report.hash);
  }
  if (case_->Replicated()) {
    merged.wrong += static_cast<uint64_t>(
        std::count_if(hashes.begin(), hashes.end(),
                      [&](uint64_t hash) { return hash != hashes[0]; }));
  } else {
    merged.hash = XXH64(hashes.data(), hashes.size() * sizeof(uint64_t), 0);
  }
  return merged;
}

int CollectivesBench::Fitting(double share, double seconds, int least,
                              int most) const {
  const double fitting = share * absl::ToDoubleSeconds(options_.case_time) /
                         std::max(seconds, 1e-9);
  return static_cast<int>(std::clamp<double>(fitting, least, most));
}

absl::Status CollectivesBench::Iterate(cluster::Communicator& control,
                                       int count) {
  const bool last = case_->EndsWithTheLast();
  const auto ways = static_cast<size_t>(case_->num_ways());
  times_.assign(ways, {});
  until_last_.assign(last ? ways + 1 : 0, {});
  for (auto* const times : {&times_, &until_last_}) {
    for (std::vector<float>& of_way : *times) of_way.reserve(count);
  }
  for (int i = 0; i < count; ++i) {
    for (size_t way = 0; way < std::max(times_.size(), until_last_.size());
         ++way) {
      RF_RETURN_IF_ERROR(control.Barrier(Soon()));
      const cluster::Deadline deadline = Soon();
      const Clock::time_point begin = Clock::now();
      const auto us = [begin] {
        return static_cast<float>(Seconds(Clock::now() - begin) * 1e6);
      };
      if (way < ways) {
        RF_RETURN_IF_ERROR(case_->Run(static_cast<int>(way), deadline));
        times_[way].push_back(us());
      }
      if (!last) continue;
      RF_RETURN_IF_ERROR(control.Barrier(Soon()));
      until_last_[way].push_back(us());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> CollectivesBench::Merge(
    cluster::Communicator& control, const std::vector<float>& own) {
  RF_ASSIGN_OR_RETURN(const std::vector<float> times,
                      Gather(control, own.data(), own.size()));
  std::vector<double> merged(own.size());
  for (size_t i = 0; i < times.size(); ++i) {
    double& time = merged[i % own.size()];
    if (case_->EndsWithTheLast()) {
      time = std::max<double>(time, times[i]);
    } else {
      time += times[i] / control.size();
    }
  }
  std::sort(merged.begin(), merged.end());
  return merged;
}

absl::StatusOr<double> CollectivesBench::CpuSeconds(
    cluster::Communicator& control, int count) {
  double cpu = 0;
  for (int i = 0; i < count; ++i) {
    RF_RETURN_IF_ERROR(control.Barrier(Soon()));
    const double begin = ProcessCpuSeconds();
    RF_RETURN_IF_ERROR(case_->Run(/*way=*/0, Soon()));
    cpu += ProcessCpuSeconds() - begin;
  }
  return cpu / count;
}

absl::StatusOr<CollectiveFigures> CollectivesBench::Measure(
    cluster::Communicator& control, cluster::Communicator& measured,
    const CollectiveCase::Spec& spec) {
  return Measure(control, std::make_unique<CollectiveCase>(&measured, spec));
}

absl::StatusOr<CollectiveFigures> CollectivesBench::Measure(
    cluster::Communicator& control, std::unique_ptr<BenchCase> measured) {
  case_ = std::move(measured);
  const uint64_t bytes = case_->bytes();
  RF_ASSIGN_OR_RETURN(const Report first, Verify(control));

  // All ranks decide the iterations alike, by the slowest rank's time.
  const Counts counts = CountsFor(bytes);
  const int warm_up =
      Fitting(0.2, first.seconds * case_->num_ways(), 1, counts.warm_up);
  const Clock::time_point begin = Clock::now();
  RF_RETURN_IF_ERROR(Iterate(control, warm_up));
  const double own_seconds = Seconds(Clock::now() - begin) / warm_up;
  RF_ASSIGN_OR_RETURN(const std::vector<double> seconds,
                      Gather(control, &own_seconds, 1));
  const int timed =
      options_.iterations > 0
          ? options_.iterations
          : Fitting(0.6, *std::max_element(seconds.begin(), seconds.end()),
                    kLeastIterations, counts.timed);
  RF_RETURN_IF_ERROR(Iterate(control, timed));
  RF_ASSIGN_OR_RETURN(const double own_cpu,
                      CpuSeconds(control, std::min(timed, warm_up)));

  CollectiveFigures figures;
  std::vector<double> barriers = {0};
  if (!until_last_.empty()) {
    RF_ASSIGN_OR_RETURN(barriers, Merge(control, until_last_.back()));
  }
  for (size_t way = 0; way < times_.size(); ++way) {
    RF_ASSIGN_OR_RETURN(const std::vector<double> times,
                        Merge(control, times_[way]));
    std::vector<double> until_last = times;
    if (!until_last_.empty()) {
      RF_ASSIGN_OR_RETURN(until_last, Merge(control, until_last_[way]));
    }
    // The time until the last rank is at least the longest time of a rank.
    const auto of = [&](double quantile) {
      return std::max(
          Percentile(times, quantile),
          Percentile(until_last, quantile) - Percentile(barriers, 0.5));
    };
    if (way == 0) figures.p99_us = of(0.99);
    figures.way_p50_us.push_back(of(0.5));
  }
  RF_ASSIGN_OR_RETURN(const std::vector<double> cpu,
                      Gather(control, &own_cpu, 1));
  RF_ASSIGN_OR_RETURN(const Report last, Verify(control));

  figures.iterations = timed;
  figures.p50_us = figures.way_p50_us[0];
  if (bytes > 0) {
    double sum = 0;
    for (const double rank_seconds : cpu) sum += rank_seconds;
    figures.cpu_seconds_per_gb =
        sum / control.size() / (static_cast<double>(bytes) * 1e-9);
  }
  figures.wrong =
      std::max(first.wrong, last.wrong) + (last.hash != first.hash ? 1 : 0);
  figures.hash = first.hash;
  case_.reset();  // All ranks have done with it.
  return figures;
}

}  // namespace ringfleet::worker
