// SPDX-License-Identifier: Apache-2.0
#include "worker/service/host_service.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "cluster/process/process_limits.h"
#include "cluster/recording/trace_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"
#include "worker/loading/host.h"

namespace ringfleet::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostServiceTest, ReportsWhatThisHostIs) {
  const testing::TempDir logs;
  const testing::TempDir folder;
  HostService service(/*threads=*/2, /*memory_limit_bytes=*/1 << 20,
                      logs.path());
  v1::MeasureHostRequest request;
  request.add_folders(folder.path());
  request.add_folders(folder.File("not/yet"));  // Nobody has written there.
  request.set_time_ms(1);
  request.set_ranks_on_host(16);  // Little memory for each.
  v1::HostReport report;
  const grpc::Status status = service.Measure(nullptr, &request, &report);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(report.host().empty());
  EXPECT_FALSE(report.isa().empty());
  EXPECT_FALSE(report.build().build_id().empty());
  EXPECT_EQ(report.threads(), 2u);
  EXPECT_EQ(report.cpus(), static_cast<uint32_t>(cluster::AvailableCpus()));
  EXPECT_GE(report.numa_nodes(), 1u);
  EXPECT_EQ(report.available_memory_bytes(), 1u << 20);
  std::vector<std::string> paths;
  for (const v1::FolderSpace& space : report.folders()) {
    paths.push_back(space.path());
    EXPECT_GT(space.free_bytes(), 0u);
  }
  EXPECT_THAT(paths,
              ElementsAre(folder.path(), folder.File("not/yet"), logs.path()));
  ASSERT_GT(report.products_size(), 1);
  EXPECT_EQ(report.products(0).rows(), 1u);
  std::vector<double> rates;
  for (int i = 0; i < report.products_size(); ++i) {
    if (i > 0) {
      EXPECT_GT(report.products(i).rows(), report.products(i - 1).rows());
    }
    rates.push_back(report.products(i).ops_per_second());
  }
  std::vector<std::string> forms;
  for (const v1::FormRate& rate : report.forms()) {
    forms.push_back(rate.form());
    rates.push_back(rate.ops_per_second());
  }
  EXPECT_THAT(forms, ElementsAre("int4", "bf16", "f32"));
  rates.push_back(report.attention().absorbed_ops_per_second());
  rates.push_back(report.attention().absorbed_16_heads_ops_per_second());
  rates.push_back(report.attention().materialized_ops_per_second());
  rates.push_back(report.attention().absorbed_f32_cache_ops_per_second());
  rates.push_back(report.attention().materialized_f32_cache_ops_per_second());
  for (const double rate : rates) {
    EXPECT_GT(rate, 0);
    EXPECT_TRUE(std::isfinite(rate));
  }
  EXPECT_EQ(report.disk_bytes_per_second(), 0);  // Nothing to read was named.
  EXPECT_FALSE(report.no_weights());
}

TEST(HostServiceTest, SaysWhetherItHasWeights) {
  const testing::TempDir folder;
  EXPECT_FALSE(HasWeights(folder.File("nowhere")));
  testing::WriteFile(folder.File("config.json"), "{}");
  EXPECT_FALSE(HasWeights(folder.path()));
  EXPECT_TRUE(HasWeights(folder.File("config.json")));  // A disk to measure.
  HostService service(1, 0);
  v1::MeasureHostRequest request;
  request.set_time_ms(1);
  request.set_ranks_on_host(16);
  request.set_path(folder.path());
  v1::HostReport report;
  ASSERT_TRUE(service.Measure(nullptr, &request, &report).ok());
  EXPECT_TRUE(report.no_weights());
  testing::WriteFile(folder.File("model.safetensors"), "x");
  EXPECT_TRUE(HasWeights(folder.path()));
}

TEST(HostServiceTest, MeasuresWithinItsPartOfTheMemory) {
  HostService service(1, 0);
  v1::MeasureHostRequest request;
  request.set_time_ms(1);
  request.set_ranks_on_host(2);
  request.set_memory_bytes(5 << 20);
  v1::HostReport report;
  const grpc::Status status = service.Measure(nullptr, &request, &report);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("of 2 ranks, have 5 MiB"));
}

TEST(HostServiceTest, NamesTheMachineAndItsMemory) {
  HostService service(1, 0);
  v1::MachineDescription description;
  ASSERT_TRUE(service.DescribeMachine(nullptr, nullptr, &description).ok());
  EXPECT_EQ(description.machine(), cluster::MachineId());
  ASSERT_GE(description.memory_size(), 1);
  EXPECT_EQ(description.memory(0).id(), "machine");
  EXPECT_GT(description.memory(0).amount(), 0u);
}

TEST(HostServiceTest, ItsClocksAreThoseOfThisProcess) {
  HostService service(1, 0);
  v1::ClockReading reading;
  const int64_t steady = cluster::TraceNow();
  const int64_t wall = absl::GetCurrentTimeNanos();
  ASSERT_TRUE(service.ReadClock(nullptr, nullptr, &reading).ok());
  EXPECT_GE(reading.steady_ns(), steady);
  EXPECT_LE(reading.steady_ns(), cluster::TraceNow());
  // Somebody may set the clock meanwhile, but not by a minute.
  EXPECT_NEAR(static_cast<double>(reading.unix_ns()), static_cast<double>(wall),
              60e9);
}

TEST(HostServiceTest, NoTimeOrTooMuchIsRefused) {
  HostService service(1, 0);
  for (const uint32_t time_ms : {0u, 10'001u}) {
    v1::MeasureHostRequest request;
    request.set_time_ms(time_ms);
    v1::HostReport report;
    const grpc::Status status = service.Measure(nullptr, &request, &report);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("want 1 to 10000"));
  }
}

TEST(MeasureDiskRateTest, WhatIsNotThereIsNotMeasured) {
  EXPECT_EQ(MeasureDiskRate("", absl::Milliseconds(1)), 0);
  EXPECT_EQ(MeasureDiskRate("/nowhere/at/all", absl::Milliseconds(1)), 0);
  const ringfleet::testing::TempDir empty;
  EXPECT_EQ(MeasureDiskRate(empty.path(), absl::Milliseconds(1)), 0);
  // Some file systems cannot read past the page cache: 0 then, else a rate.
  ringfleet::testing::WriteFile(empty.File("small"), "x");
  ringfleet::testing::WriteFile(empty.File("large"), std::string(8192, 'y'));
  EXPECT_GE(MeasureDiskRate(empty.path(), absl::Milliseconds(1)), 0);
}

}  // namespace
}  // namespace ringfleet::worker
