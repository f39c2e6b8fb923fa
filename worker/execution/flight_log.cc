// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/flight_log.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"
#include "cluster/process/log.h"
#include "cluster/wire/frame.h"

namespace ringfleet::worker {
namespace {

using cluster::Deadline;
using cluster::FlightRecord;

// Operations in the log: enough to see how far a step got.
constexpr size_t kLoggedRecords = 16;

uint64_t Nanoseconds(Deadline::Clock::duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

v1::FlightRecord::State StateToProto(FlightRecord::State state) {
  switch (state) {
    case FlightRecord::State::kRunning:
      return v1::FlightRecord::STATE_RUNNING;
    case FlightRecord::State::kDone:
      return v1::FlightRecord::STATE_DONE;
    case FlightRecord::State::kFailed:
      return v1::FlightRecord::STATE_FAILED;
  }
  return v1::FlightRecord::STATE_UNSPECIFIED;
}

void ToProto(const FlightRecord& record, Deadline::Clock::time_point now,
             v1::FlightRecord* out) {
  out->set_epoch(record.epoch);
  out->set_group(record.group);
  out->set_sequence(record.sequence);
  out->set_operation(cluster::DescriptorName(record.op_descriptor));
  out->set_count(record.count);
  out->set_bytes(record.bytes);
  out->set_state(StateToProto(record.state));
  out->set_code(static_cast<uint32_t>(record.code));
  out->set_waiting_for(record.waiting_for);
  out->set_frames(record.frames);
  out->set_age_ns(Nanoseconds(now - record.begin));
  out->set_first_frame_ns(Nanoseconds(record.first_frame - record.begin));
  out->set_last_frame_ns(Nanoseconds(record.last_frame - record.begin));
  const bool running = record.state == FlightRecord::State::kRunning;
  out->set_duration_ns(
      Nanoseconds((running ? now : record.end) - record.begin));
}

}  // namespace

void FlightLog::Report(const absl::Status& cause) {
  const std::vector<FlightRecord> records = recorder_.Records();
  const auto now = Deadline::Clock::now();
  const size_t shown = std::min(records.size(), kLoggedRecords);
  for (size_t i = records.size() - shown; i < records.size(); ++i) {
    RF_LOG(kWarning,
           "flight: ", cluster::FlightRecorder::Line(records[i], now));
  }
  if (log_file_.empty() || records.empty()) return;
  const std::string path = log_file_ + ".flight";
  const absl::Status written =
      cluster::WriteFlightFile(path, cause.ToString(), recorder_);
  if (written.ok()) {
    RF_LOG(kWarning, records.size(), " flight records are in ", path);
  } else {
    RF_LOG(kError, written.message());
  }
}

void FlightLog::Read(uint32_t limit,
                     v1::FlightRecordsResponse* response) const {
  const std::vector<FlightRecord> records = recorder_.Records();
  const auto now = Deadline::Clock::now();
  const size_t shown =
      limit == 0 ? records.size() : std::min<size_t>(limit, records.size());
  for (size_t i = records.size() - shown; i < records.size(); ++i) {
    ToProto(records[i], now, response->add_records());
  }
}

void FlightLog::AddTo(v1::WorkerFigures* figures) const {
  for (const cluster::CollectiveTotal& total : recorder_.Totals()) {
    v1::CollectiveTotal* const out = figures->add_collectives();
    out->set_operation(static_cast<v1::CollectiveOperation>(total.operation));
    out->set_algorithm(static_cast<v1::CollectiveAlgorithm>(total.algorithm));
    out->set_count(total.count);
    out->set_duration_ns(total.duration_ns);
    out->set_sent_bytes(total.sent_bytes);
  }
  for (int peer = 0; peer < cluster::RoundTrips::kPeers; ++peer) {
    const uint64_t ns = round_trips_.Shortest(peer);
    if (ns == 0) continue;
    v1::RoundTrip* const out = figures->add_round_trips();
    out->set_peer(static_cast<uint32_t>(peer));
    out->set_ns(ns);
  }
}

}  // namespace ringfleet::worker
