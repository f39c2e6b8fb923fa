// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_split.h"
#include "cluster/wire/frame.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using State = FlightRecord::State;

FlightRecord Recorded(uint64_t sequence) {
  FlightRecord record;
  record.epoch = 3;
  record.sequence = sequence;
  record.op_descriptor =
      PackDescriptor({Operation::kAllReduce, Algorithm::kOneShot, Wire::kF32});
  record.count = 7168;
  record.bytes = 28672;
  return record;
}

TEST(FlightRecorderTest, IsEmptyBeforeTheFirstOperation) {
  FlightRecorder recorder;
  recorder.Frame(1);
  recorder.WaitFor(1);
  recorder.End(absl::OkStatus());
  EXPECT_TRUE(recorder.Records().empty());
  EXPECT_FALSE(recorder.Latest().has_value());
}

TEST(FlightRecorderTest, FollowsAnOperationFromBeginToEnd) {
  FlightRecorder recorder;
  recorder.Begin(Recorded(17));
  recorder.WaitFor(2);
  FlightRecord record = *recorder.Latest();
  EXPECT_EQ(record.state, State::kRunning);
  EXPECT_EQ(record.waiting_for, 2);
  EXPECT_EQ(record.first_frame, record.begin);
  EXPECT_EQ(record.end, record.begin);

  recorder.Frame(2);
  recorder.Frame(1);
  recorder.End(absl::OkStatus());
  record = *recorder.Latest();
  EXPECT_EQ(record.state, State::kDone);
  EXPECT_EQ(record.sequence, 17u);
  EXPECT_EQ(record.count, 7168u);
  EXPECT_EQ(record.frames, 2u);
  EXPECT_EQ(record.waiting_for, 1);
  EXPECT_LE(record.begin, record.first_frame);
  EXPECT_LE(record.first_frame, record.last_frame);
  EXPECT_LE(record.last_frame, record.end);
}

TEST(FlightRecorderTest, TotalsCountWhatEndedWellByOperationAndAlgorithm) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.Totals().empty());
  const auto run = [&recorder](Operation operation, Algorithm algorithm,
                               size_t sent, const absl::Status& status) {
    FlightRecord record = Recorded(1);
    record.op_descriptor = PackDescriptor({operation, algorithm, Wire::kBf16});
    recorder.Begin(record);
    recorder.Sent(sent);
    recorder.Sent(1);
    recorder.End(status);
  };
  run(Operation::kAllReduce, Algorithm::kOneShot, 10, absl::OkStatus());
  run(Operation::kAllReduce, Algorithm::kOneShot, 20, absl::OkStatus());
  run(Operation::kAllReduce, Algorithm::kRing, 30, absl::OkStatus());
  run(Operation::kBarrier, Algorithm::kOneShot, 40, absl::AbortedError("x"));
  const std::vector<CollectiveTotal> totals = recorder.Totals();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].operation, Operation::kAllReduce);
  EXPECT_EQ(totals[0].algorithm, Algorithm::kOneShot);
  EXPECT_EQ(totals[0].count, 2u);
  EXPECT_EQ(totals[0].sent_bytes, 32u);
  EXPECT_LT(totals[0].duration_ns, 60'000'000'000u);
  EXPECT_EQ(totals[1].algorithm, Algorithm::kRing);
  EXPECT_EQ(totals[1].count, 1u);
  EXPECT_EQ(totals[1].sent_bytes, 31u);
  // The payload of a failed operation was sent, too.
  EXPECT_EQ(recorder.sent_bytes(), 104u);
}

// What the caller leaves in the fields that the recorder fills in is dropped.
TEST(FlightRecorderTest, BeginIgnoresTimesAndStateOfItsArgument) {
  FlightRecorder recorder;
  FlightRecord stale = Recorded(1);
  stale.state = State::kFailed;
  stale.code = absl::StatusCode::kAborted;
  stale.frames = 9;
  recorder.Begin(stale);
  EXPECT_EQ(recorder.Latest()->state, State::kRunning);
  EXPECT_EQ(recorder.Latest()->code, absl::StatusCode::kOk);
  EXPECT_EQ(recorder.Latest()->frames, 0u);
  EXPECT_GT(recorder.Latest()->begin, Deadline::Clock::time_point());
}

TEST(FlightRecorderTest, KeepsTheLastOnesOldestFirst) {
  FlightRecorder recorder;
  const uint64_t begun = FlightRecorder::kCapacity + 10;
  for (uint64_t i = 1; i <= begun; ++i) {
    recorder.Begin(Recorded(i));
    recorder.End(absl::OkStatus());
  }
  const std::vector<FlightRecord> records = recorder.Records();
  ASSERT_EQ(records.size(), FlightRecorder::kCapacity);
  for (size_t i = 0; i < records.size(); ++i) {
    ASSERT_EQ(records[i].sequence, 11 + i);
    ASSERT_EQ(records[i].state, State::kDone);
  }
  EXPECT_EQ(recorder.Latest()->sequence, begun);
}

TEST(FlightRecorderTest, LinesTellWhatIsMissing) {
  const Deadline::Clock::time_point begin{std::chrono::seconds(100)};
  FlightRecord record = Recorded(17);
  record.begin = record.first_frame = record.last_frame = record.end = begin;
  record.waiting_for = 2;
  const auto now = begin + std::chrono::microseconds(250400);
  EXPECT_EQ(FlightRecorder::Line(record, now),
            "epoch 3 #17 all_reduce (one_shot, f32), 7168 elements, 28672 "
            "bytes: running for 250.4ms, 0 frames, waits for rank 2");

  record.frames = 3;
  record.first_frame = begin + std::chrono::microseconds(41);
  record.last_frame = begin + std::chrono::microseconds(1900);
  record.end = begin + std::chrono::nanoseconds(2101999);
  record.state = State::kDone;
  record.group = 5;
  EXPECT_EQ(FlightRecorder::Line(record, now),
            "epoch 3 group 5 #17 all_reduce (one_shot, f32), 7168 elements, "
            "28672 bytes: done in 2.1ms, 3 frames after 41us to 1.9ms, the "
            "last of rank 2");

  record.state = State::kFailed;
  record.code = absl::StatusCode::kDeadlineExceeded;
  EXPECT_THAT(FlightRecorder::Line(record, now),
              HasSubstr("failed after 2.1ms (DEADLINE_EXCEEDED), 3 frames"));
  EXPECT_THAT(FlightRecorder::Line(record, now),
              HasSubstr("waited for rank 2"));

  record.waiting_for = -1;
  EXPECT_THAT(FlightRecorder::Line(record, now), Not(HasSubstr("rank")));
}

TEST(FlightRecorderTest, MayBeReadWhileOperationsRun) {
  FlightRecorder recorder;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      uint64_t last = 0;
      for (const FlightRecord& record : recorder.Records()) {
        ASSERT_EQ(record.sequence, record.count);
        ASSERT_TRUE(last == 0 || record.sequence == last + 1);
        last = record.sequence;
      }
    }
  });
  for (uint64_t i = 1; i <= 3 * FlightRecorder::kCapacity; ++i) {
    FlightRecord record = Recorded(i);
    record.count = i;
    recorder.Begin(record);
    recorder.Frame(1);
    recorder.End(absl::OkStatus());
  }
  done = true;
  reader.join();
}

class FlightFileTest : public ::testing::Test {
 protected:
  FlightFileTest() {
    char folder[] = "/tmp/rf-flight-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~FlightFileTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(FlightFileTest, HoldsEveryRecordBehindItsTime) {
  FlightRecorder recorder;
  for (const uint64_t sequence : {1, 2, 3}) recorder.Begin(Recorded(sequence));
  recorder.End(absl::AbortedError("x"));
  const std::string path = folder_ + "/worker.log.flight";
  std::ofstream(path) << "of an earlier failure";
  ASSERT_TRUE(WriteFlightFile(path, "worker 1: rank 2 left", recorder).ok());

  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  ASSERT_EQ(lines.size(), 5u) << text;
  EXPECT_EQ(lines[0], "worker 1: rank 2 left");
  EXPECT_THAT(lines[1], MatchesRegex("20..-..-..T..:..:..[.].*Z epoch 3 #1 .*"
                                     "running for .*"));
  EXPECT_THAT(lines[3], MatchesRegex(".* epoch 3 #3 .*failed .*"));
  EXPECT_EQ(lines[4], "");
  EXPECT_NE(std::ifstream(path).get(), EOF);
  EXPECT_FALSE(std::ifstream(path + ".part").is_open());
}

TEST_F(FlightFileTest, NamesTheFileItCannotWrite) {
  const FlightRecorder recorder;
  const std::string path = folder_ + "/missing/worker.log.flight";
  const absl::Status status = WriteFlightFile(path, "title", recorder);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

}  // namespace
}  // namespace ringfleet::cluster
