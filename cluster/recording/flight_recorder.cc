// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/flight_recorder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {
namespace {

using Clock = Deadline::Clock;

// "2.1ms": three digits are enough, and nanoseconds would bury them.
std::string DurationText(Clock::duration duration) {
  const absl::Duration exact = absl::FromChrono(duration);
  for (const absl::Duration unit :
       {absl::Seconds(1), absl::Milliseconds(1), absl::Microseconds(1)}) {
    if (exact >= unit) {
      return absl::FormatDuration(absl::Trunc(exact, unit / 100));
    }
  }
  return absl::FormatDuration(exact);
}

// Adds without a locked instruction: one thread writes.
void AddTo(std::atomic<uint64_t>& total, uint64_t value) {
  total.store(total.load(std::memory_order_relaxed) + value,
              std::memory_order_relaxed);
}

}  // namespace

FlightRecorder::FlightRecorder() : ring_(kCapacity) {}

void FlightRecorder::Begin(const FlightOperation& operation) {
  const uint64_t number = begun_.load(std::memory_order_relaxed);
  latest_ = {.number = number, .operation = operation};
  FlightOperation& own = latest_.operation;
  own.state = FlightRecord::State::kRunning;
  own.code = absl::StatusCode::kOk;
  own.frames = 0;
  sent_ = 0;
  latest_.begin = Ticks();
  latest_.first_frame = latest_.last_frame = latest_.end = latest_.begin;
  Show();
  begun_.store(number + 1, std::memory_order_release);
}

void FlightRecorder::Frame(int rank) {
  if (begun_.load(std::memory_order_relaxed) == 0) return;
  FlightOperation& own = latest_.operation;
  latest_.last_frame = Ticks();
  if (own.frames++ == 0) latest_.first_frame = latest_.last_frame;
  own.waiting_for = rank;
  Show();
}

void FlightRecorder::WaitFor(int rank) {
  if (begun_.load(std::memory_order_relaxed) == 0) return;
  latest_.operation.waiting_for = rank;
  Show();
}

void FlightRecorder::End(const absl::Status& status) {
  if (begun_.load(std::memory_order_relaxed) == 0) return;
  FlightOperation& own = latest_.operation;
  own.state =
      status.ok() ? FlightRecord::State::kDone : FlightRecord::State::kFailed;
  own.code = status.code();
  latest_.end = Ticks();
  Show();
  AddTo(sent_bytes_, sent_);
  const uint32_t operation = own.op_descriptor & 0xff;
  const uint32_t algorithm = own.op_descriptor >> 8 & 0xff;
  if (!status.ok() || operation >= kOperations || algorithm >= kAlgorithms) {
    return;
  }
  Total& total = totals_[operation][algorithm];
  AddTo(total.count, 1);
  AddTo(total.ticks, latest_.end - latest_.begin);
  AddTo(total.sent_bytes, sent_);
}

std::vector<CollectiveTotal> FlightRecorder::Totals() const {
  std::vector<CollectiveTotal> totals;
  const TickClock::Scale scale = clock_.Now();
  for (size_t operation = 0; operation < kOperations; ++operation) {
    for (size_t algorithm = 0; algorithm < kAlgorithms; ++algorithm) {
      const Total& total = totals_[operation][algorithm];
      const uint64_t count = total.count.load(std::memory_order_relaxed);
      if (count == 0) continue;
      totals.push_back(
          {.operation = static_cast<Operation>(operation),
           .algorithm = static_cast<Algorithm>(algorithm),
           .count = count,
           .duration_ns =
               scale.Nanoseconds(total.ticks.load(std::memory_order_relaxed)),
           .sent_bytes = total.sent_bytes.load(std::memory_order_relaxed)});
    }
  }
  return totals;
}

FlightRecord FlightRecorder::WithTimes(const Entry& entry,
                                       const TickClock::Scale& scale) {
  FlightRecord record{entry.operation};
  record.begin = scale.TimeOf(entry.begin);
  record.first_frame = scale.TimeOf(entry.first_frame);
  record.last_frame = scale.TimeOf(entry.last_frame);
  record.end = scale.TimeOf(entry.end);
  return record;
}

std::vector<FlightRecord> FlightRecorder::Records() const {
  std::vector<Entry> entries;
  entries.reserve(kCapacity);
  const uint64_t begun = begun_.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>(begun, kCapacity);
  for (uint64_t i = begun - kept; i < begun; ++i) {
    const Entry entry = ring_[i % kCapacity].Load();
    if (entry.number == i) {
      entries.push_back(entry);
    } else {  // Those that have begun meanwhile replace the oldest ones.
      entries.clear();
    }
  }
  std::vector<FlightRecord> records;
  records.reserve(entries.size());
  const TickClock::Scale scale = clock_.Now();
  for (const Entry& entry : entries) records.push_back(WithTimes(entry, scale));
  return records;
}

std::optional<FlightRecord> FlightRecorder::Latest() const {
  const uint64_t begun = begun_.load(std::memory_order_acquire);
  if (begun == 0) return std::nullopt;
  const Entry entry = ring_[(begun - 1) % kCapacity].Load();
  return WithTimes(entry, clock_.Now());
}

std::string FlightRecorder::Line(const FlightRecord& record,
                                 Clock::time_point now) {
  std::string line = absl::StrCat("epoch ", record.epoch);
  if (record.group != 0) absl::StrAppend(&line, " group ", record.group);
  absl::StrAppend(&line, " #", record.sequence, " ",
                  DescriptorName(record.op_descriptor), ", ", record.count,
                  " elements, ", record.bytes, " bytes: ");
  const char* last_rank = "the last of rank ";
  switch (record.state) {
    case FlightRecord::State::kRunning:
      absl::StrAppend(&line, "running for ", DurationText(now - record.begin));
      last_rank = "waits for rank ";
      break;
    case FlightRecord::State::kDone:
      absl::StrAppend(&line, "done in ",
                      DurationText(record.end - record.begin));
      break;
    case FlightRecord::State::kFailed:
      absl::StrAppend(&line, "failed after ",
                      DurationText(record.end - record.begin), " (",
                      absl::StatusCodeToString(record.code), ")");
      last_rank = "waited for rank ";
      break;
  }
  absl::StrAppend(&line, ", ", record.frames, " frames");
  if (record.frames > 0) {
    absl::StrAppend(&line, " after ",
                    DurationText(record.first_frame - record.begin), " to ",
                    DurationText(record.last_frame - record.begin));
  }
  if (record.waiting_for >= 0) {
    absl::StrAppend(&line, ", ", last_rank, record.waiting_for);
  }
  return line;
}

absl::Status WriteFlightFile(const std::string& path, absl::string_view title,
                             const FlightRecorder& recorder) {
  const Clock::time_point now = Clock::now();
  const absl::Time wall = absl::Now();
  // Whole or not at all: a reader may look at any time.
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished, std::ios::trunc);
  file << title << "\n";
  for (const FlightRecord& record : recorder.Records()) {
    const absl::Time begin = wall - absl::FromChrono(now - record.begin);
    file << absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", begin, absl::UTCTimeZone())
         << " " << FlightRecorder::Line(record, now) << "\n";
  }
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(unfinished.c_str());
    return absl::UnavailableError(absl::StrCat(
        "flight records: cannot write ", path, ": ", std::strerror(error)));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
