// SPDX-License-Identifier: Apache-2.0
#include "worker/execution/flight_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cluster/wire/frame.h"

namespace ringfleet::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FlightLogTest : public ::testing::Test {
 protected:
  FlightLogTest() {
    char folder[] = "/tmp/rf-flight-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~FlightLogTest() override { std::filesystem::remove_all(folder_); }

  static cluster::FlightOperation Record(uint64_t sequence) {
    return {.epoch = 3,
            .group = 2,
            .sequence = sequence,
            .op_descriptor = cluster::PackDescriptor(
                {cluster::Operation::kAllGather, cluster::Algorithm::kRing,
                 cluster::Wire::kBf16}),
            .count = 100,
            .bytes = 200};
  }

  std::string folder_;
};

TEST_F(FlightLogTest, FiguresHaveTotalsAndRoundTrips) {
  FlightLog log("");
  log.recorder().Begin(Record(17));
  log.recorder().Sent(90);
  log.recorder().End(absl::OkStatus());
  log.round_trips().Note(2, 4500);
  v1::WorkerFigures figures;
  log.AddTo(&figures);
  ASSERT_EQ(figures.collectives_size(), 1);
  const v1::CollectiveTotal& total = figures.collectives(0);
  EXPECT_EQ(total.operation(), v1::COLLECTIVE_OPERATION_ALL_GATHER);
  EXPECT_EQ(total.algorithm(), v1::COLLECTIVE_ALGORITHM_RING);
  EXPECT_EQ(total.count(), 1u);
  EXPECT_EQ(total.sent_bytes(), 90u);
  ASSERT_EQ(figures.round_trips_size(), 1);
  EXPECT_EQ(figures.round_trips(0).peer(), 2u);
  EXPECT_EQ(figures.round_trips(0).ns(), 4500u);
}

TEST_F(FlightLogTest, RecordsTravelWithAllTheyHold) {
  FlightLog log("");
  log.recorder().Begin(Record(17));
  log.recorder().Frame(1);
  log.recorder().End(absl::DeadlineExceededError("late"));
  log.recorder().Begin(Record(18));
  log.recorder().WaitFor(5);

  v1::FlightRecordsResponse response;
  log.Read(0, &response);
  ASSERT_EQ(response.records_size(), 2);
  const v1::FlightRecord& failed = response.records(0);
  EXPECT_EQ(failed.epoch(), 3u);
  EXPECT_EQ(failed.group(), 2u);
  EXPECT_EQ(failed.sequence(), 17u);
  EXPECT_EQ(failed.operation(), "all_gather (ring, bf16)");
  EXPECT_EQ(failed.count(), 100u);
  EXPECT_EQ(failed.bytes(), 200u);
  EXPECT_EQ(failed.state(), v1::FlightRecord::STATE_FAILED);
  EXPECT_EQ(failed.code(), 4u);
  EXPECT_EQ(failed.waiting_for(), 1);
  EXPECT_EQ(failed.frames(), 1u);
  EXPECT_LE(failed.first_frame_ns(), failed.last_frame_ns());
  EXPECT_LE(failed.last_frame_ns(), failed.duration_ns());
  EXPECT_LE(failed.duration_ns(), failed.age_ns());

  const v1::FlightRecord& running = response.records(1);
  EXPECT_EQ(running.state(), v1::FlightRecord::STATE_RUNNING);
  EXPECT_EQ(running.waiting_for(), 5);
  EXPECT_EQ(running.first_frame_ns(), 0u);
  EXPECT_EQ(running.duration_ns(), running.age_ns());
}

TEST_F(FlightLogTest, ALimitKeepsTheLatest) {
  FlightLog log("");
  for (const uint64_t sequence : {1, 2, 3})
    log.recorder().Begin(Record(sequence));
  v1::FlightRecordsResponse response;
  log.Read(1, &response);
  ASSERT_EQ(response.records_size(), 1);
  EXPECT_EQ(response.records(0).sequence(), 3u);
  response.Clear();
  log.Read(100, &response);
  EXPECT_EQ(response.records_size(), 3);
}

// The largest answer must fit into gRPC's default message.
TEST_F(FlightLogTest, AFullRecorderFitsIntoAMessage) {
  FlightLog log("");
  for (uint64_t i = 0; i < cluster::FlightRecorder::kCapacity; ++i) {
    cluster::FlightOperation record = Record(~i);
    record.epoch = record.count = record.bytes = ~i;
    log.recorder().Begin(record);
  }
  v1::FlightRecordsResponse response;
  log.Read(0, &response);
  EXPECT_LT(response.ByteSizeLong(), size_t{4} << 20);
}

TEST_F(FlightLogTest, AReportIsAFileBesideTheLog) {
  const std::string path = folder_ + "/worker.log";
  FlightLog log(path);
  log.Report(absl::AbortedError("before any operation"));
  EXPECT_FALSE(std::filesystem::exists(path + ".flight"));
  log.recorder().Begin(Record(17));
  log.recorder().WaitFor(2);
  log.Report(absl::UnavailableError("lost rank 2"));
  std::ifstream file(path + ".flight");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, AllOf(StartsWith("UNAVAILABLE: lost rank 2\n"),
                          HasSubstr("#17 all_gather (ring, bf16)"),
                          HasSubstr("waits for rank 2")));
}

}  // namespace
}  // namespace ringfleet::worker
