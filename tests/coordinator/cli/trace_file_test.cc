// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::ringfleet::testing::ReadFile;
using ::ringfleet::testing::TempDir;
using ::testing::HasSubstr;

v1::TraceProgress TestRank(uint32_t rank) {
  v1::TraceProgress progress;
  progress.mutable_rank()->set_rank(rank);
  progress.mutable_rank()->set_host("host \"a\"");
  progress.mutable_rank()->set_address("10.0.0.1:50052");
  progress.mutable_rank()->set_dropped(rank);
  progress.mutable_rank()->mutable_began()->set_offset_ns(-1500);
  progress.mutable_rank()->mutable_began()->set_error_ns(250);
  return progress;
}

v1::TraceProgress TestEvents(uint32_t rank) {
  v1::TraceProgress progress;
  progress.mutable_events()->set_rank(rank);
  v1::TraceChunk* chunk = progress.mutable_events()->mutable_chunk();
  chunk->add_names("layer");
  chunk->add_names("send left");
  v1::TraceEvent* layer = chunk->add_events();
  layer->set_kind(v1::TraceEvent::KIND_LAYER);
  layer->set_thread(v1::TraceEvent::THREAD_EXECUTOR);
  layer->set_layer(3);
  layer->set_begin_ns(1'234'567);
  layer->set_duration_ns(1'001);
  v1::TraceEvent* send = chunk->add_events();
  send->set_name(1);
  send->set_kind(v1::TraceEvent::KIND_SEND);
  send->set_thread(v1::TraceEvent::THREAD_COMMUNICATION);
  send->set_step(9);
  send->set_peer(0);
  send->set_bytes(4096);
  return progress;
}

TEST(TraceFileTest, IsTheObjectFormatOfTraceEvents) {
  const TempDir folder;
  const std::string path = folder.File("trace.json");
  {
    auto file = TraceFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    v1::TraceProgress started;
    started.mutable_started()->set_unix_ms(1'700'000'000'123);
    started.mutable_started()->set_steady_ns(5'000'000'250);
    ASSERT_TRUE((*file)->Add(started).ok());
    for (const uint32_t rank : {0u, 1u}) {
      ASSERT_TRUE((*file)->Add(TestRank(rank)).ok());
      ASSERT_TRUE((*file)->Add(TestEvents(rank)).ok());
    }
    EXPECT_FALSE(std::filesystem::exists(path)) << "not before it is whole";
    ASSERT_TRUE((*file)->Finish().ok());
    EXPECT_EQ((*file)->events(), 4u);
    EXPECT_EQ((*file)->dropped(), 1u);
  }
  const Json trace = Json::parse(ReadFile(path));
  int complete = 0;
  for (const Json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event["name"].is_string()) << event;
    ASSERT_TRUE(event["pid"].is_number_integer()) << event;
    ASSERT_TRUE(event["tid"].is_number_integer()) << event;
    if (event["ph"] == "M") {
      ASSERT_TRUE(event["args"].is_object()) << event;
      continue;
    }
    ASSERT_EQ(event["ph"], "X");
    ASSERT_TRUE(event["ts"].is_number() && event["dur"].is_number()) << event;
    ++complete;
  }
  EXPECT_EQ(complete, 4);
  const Json& layer = trace["traceEvents"][4];
  EXPECT_EQ(layer["name"], "layer 3");
  EXPECT_EQ(layer["cat"], "layer");
  EXPECT_DOUBLE_EQ(layer["ts"].get<double>(), 1234.567);
  EXPECT_DOUBLE_EQ(layer["dur"].get<double>(), 1.001);
  const Json& send = trace["traceEvents"][5];
  EXPECT_EQ(send["tid"], 2);
  EXPECT_EQ(send["args"], (Json{{"step", 9}, {"bytes", 4096}, {"peer", 0}}));
  const Json& other = trace["otherData"];
  EXPECT_EQ(other["began"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(other["began_monotonic_us"], 5000000.25);
  ASSERT_EQ(other["ranks"].size(), 2u);
  EXPECT_EQ(other["ranks"][1]["dropped"], 1);
  EXPECT_EQ(other["ranks"][1]["events"], 2);
  EXPECT_EQ(other["ranks"][1]["clock_began"],
            (Json{{"offset_us", -1.5}, {"error_us", 0.25}}));
}

TEST(TraceFileTest, WhatIsNotFinishedLeavesNothing) {
  const TempDir folder;
  ASSERT_TRUE(TraceFile::Open(folder.File("trace.json")).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TraceFileTest, APathThatCannotBeWrittenIsNamed) {
  const TempDir folder;
  for (const auto& [path, why] :
       {std::pair(folder.File("none/trace.json"), "No such file"),
        std::pair(std::string(folder.path()), "want a file")}) {
    const absl::Status status = TraceFile::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }
}

TEST(TraceFileTest, AnEventWithoutANameIsAnError) {
  const TempDir folder;
  auto file = TraceFile::Open(folder.File("trace.json"));
  ASSERT_TRUE(file.ok()) << file.status();
  v1::TraceProgress events = TestEvents(0);
  events.mutable_events()->mutable_chunk()->mutable_events(0)->set_name(2);
  EXPECT_EQ((*file)->Add(events).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
