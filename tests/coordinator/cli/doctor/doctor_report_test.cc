// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/doctor/doctor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/cli/doctor/doctor_run.h"
#include "coordinator/cli/plan/plan_fleet.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DoctorFindings TwoHealthyHosts() {
  DoctorFindings findings;
  findings.model = "synth:tiny";
  for (const char* host : {"a", "b"}) {
    WorkerFindings worker;
    worker.rank = static_cast<int>(findings.workers.size());
    worker.host = host;
    worker.machine = std::string("boot of ") + host;
    worker.address = std::string(host) + ":50052";
    worker.read_bytes_per_second = 200e9;
    worker.report.set_isa("avx512_bf16");
    worker.report.set_threads(32);
    worker.report.set_cpus(32);
    worker.report.set_numa_nodes(1);
    worker.report.set_available_memory_bytes(uint64_t{128} << 30);
    for (const auto& [rows, rate] : {std::pair(1u, 0.4e12), {128u, 9e12}}) {
      v1::ProductRate* product = worker.report.add_products();
      product->set_rows(rows);
      product->set_ops_per_second(rate);
    }
    for (const char* form : {"int4", "bf16", "f32"}) {
      v1::FormRate* rate = worker.report.add_forms();
      rate->set_form(form);
      rate->set_ops_per_second(form[0] == 'i' ? 8e12 : 2e12);
    }
    worker.report.mutable_attention()->set_absorbed_ops_per_second(5e12);
    worker.report.mutable_attention()->set_absorbed_16_heads_ops_per_second(
        4e12);
    worker.report.mutable_attention()->set_materialized_ops_per_second(3e12);
    worker.report.mutable_attention()->set_absorbed_f32_cache_ops_per_second(
        2.5e12);
    worker.report.mutable_attention()
        ->set_materialized_f32_cache_ops_per_second(1.5e12);
    findings.workers.push_back(worker);
  }
  findings.pairs.push_back({.first = 0,
                            .second = 1,
                            .small_us = 45,
                            .gbit = 24,
                            .transport = "grpc"});
  return findings;
}

TEST(DoctorReportTest, HealthyFleetsNeedNothing) {
  EXPECT_THAT(DoctorAdvice(TwoHealthyHosts()), IsEmpty());
  EXPECT_THAT(DoctorMarkdown(TwoHealthyHosts()),
              HasSubstr("Nothing to change"));
}

TEST(DoctorReportTest, PlansReadItsDocument) {
  const std::string json = DoctorJson(TwoHealthyHosts()).dump();
  const auto fleet = ParseMeasuredFleet(json, "doctor.json", PlanOptions());
  ASSERT_TRUE(fleet.ok()) << fleet.status();
  ASSERT_EQ(fleet->hosts.size(), 2u);
  EXPECT_EQ(fleet->model, "synth:tiny");
  EXPECT_EQ(fleet->hosts[1].memory_bytes, uint64_t{128} << 30);
  EXPECT_DOUBLE_EQ(fleet->hosts[0].read_bytes_per_second, 200e9);
  EXPECT_DOUBLE_EQ(fleet->hosts[0].int8_ops_per_second, 9e12);
  ASSERT_TRUE(fleet->hosts[0].measured.has_value());
  const cluster::MeasuredRates& rates = *fleet->hosts[0].measured;
  ASSERT_EQ(rates.products.size(), 2u);
  EXPECT_EQ(rates.products[0].rows, 1);
  EXPECT_DOUBLE_EQ(rates.products[0].ops_per_second, 0.4e12);
  EXPECT_EQ(rates.products[1].rows, 128);
  EXPECT_DOUBLE_EQ(rates.int4, 8e12);
  EXPECT_DOUBLE_EQ(rates.bf16, 2e12);
  EXPECT_DOUBLE_EQ(rates.f32, 2e12);
  EXPECT_DOUBLE_EQ(rates.absorbed, 5e12);
  EXPECT_DOUBLE_EQ(rates.absorbed_few, 4e12);
  EXPECT_DOUBLE_EQ(rates.materialized, 3e12);
  EXPECT_DOUBLE_EQ(rates.absorbed_f32_cache, 2.5e12);
  EXPECT_DOUBLE_EQ(rates.materialized_f32_cache, 1.5e12);
  EXPECT_EQ(fleet->hosts[0].threads, 32);
  EXPECT_DOUBLE_EQ(fleet->network.bytes_per_second, 24e9 / 8);
  // Without the software of a message, which a plan adds itself.
  EXPECT_NEAR(fleet->network.latency_seconds, 45e-6 - kMessageSeconds, 1e-9);
  EXPECT_TRUE(fleet->assumptions.empty());
}

TEST(DoctorReportTest, WorkersOfOneMachineShareItsMemory) {
  DoctorFindings findings = TwoHealthyHosts();
  // Whatever its names.
  findings.workers[1].machine = findings.workers[0].machine;
  findings.workers[0].memory_share_bytes = uint64_t{64} << 30;
  const Json document = DoctorJson(findings);
  EXPECT_EQ(document["workers"][0]["memory_gib"], 64);
  EXPECT_THAT(
      DoctorAdvice(findings),
      ::testing::Contains(HasSubstr("2 workers of 32 threads share 32 CPUs")));
}

// Two containers of 10 and 20 bytes on a machine of 100, and a worker beside
// them.
TEST(DoctorReportTest, AContainersMemoryIsItsWorkersOwn) {
  const auto pool = [](const std::string& id, uint64_t bytes) {
    v1::ResourcePool made;
    made.set_id(id);
    made.set_amount(bytes);
    return made;
  };
  BenchWorkers workers = {{"a:1", "b:1", "c:1", "d:1"},
                          {"boot", "boot", "boot", "another boot"}};
  EXPECT_THAT(MemoryShares(workers), ElementsAre(0, 0, 0, 0));
  workers.memory = {{pool("machine", 99), pool("first", 10)},
                    {pool("machine", 99), pool("second", 20)},
                    {pool("machine", 99)},
                    {pool("machine", 50), pool("first", 40)}};
  EXPECT_THAT(MemoryShares(workers), ElementsAre(10, 20, 33, 40));
  workers.memory[2].push_back(pool("second", 20));
  EXPECT_THAT(MemoryShares(workers), ElementsAre(10, 10, 10, 40));
}

TEST(DoctorReportTest, OneNameMayStandForTwoMachines) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.workers[1].host = findings.workers[0].host;
  EXPECT_EQ(DoctorJson(findings)["workers"][0]["memory_gib"], 128);
  EXPECT_THAT(DoctorAdvice(findings), IsEmpty());
}

// They take the memory's rate from each other.
TEST(DoctorReportTest, WorkersOfOneMachineAreNotComparedWithEachOther) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.workers[1].machine = findings.workers[0].machine;
  for (WorkerFindings& worker : findings.workers) worker.report.set_threads(16);
  findings.workers[0].read_bytes_per_second = 8.5e9;
  findings.workers[1].read_bytes_per_second = 19.1e9;
  EXPECT_THAT(DoctorAdvice(findings), IsEmpty());
}

TEST(DoctorReportTest, SaysWhatIsWrong) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.workers.push_back(findings.workers[0]);
  WorkerFindings& bad = findings.workers[2];
  bad.rank = 2;
  bad.host = "c";
  bad.machine = "boot of c";
  bad.address = "c:50052";
  bad.read_bytes_per_second = 50e9;
  bad.report.mutable_products(1)->set_ops_per_second(1e12);
  bad.report.set_isa("avx2");
  bad.report.mutable_build()->set_build_id("other");
  bad.report.set_cpus(16);
  bad.report.set_numa_nodes(2);
  bad.clock_skew_ms = -2000;
  findings.pairs.push_back(
      {.first = 1, .second = 2, .small_us = 900, .gbit = 0.9});
  EXPECT_THAT(
      DoctorAdvice(findings),
      ElementsAre(HasSubstr("different builds"),
                  AllOf(HasSubstr("avx2"), HasSubstr("avx512_bf16")),
                  AllOf(HasSubstr("rank 2"),
                        HasSubstr("25 % of the median rank's memory")),
                  HasSubstr("11 % of the median rank's int8"),
                  HasSubstr("32 threads share 16 CPUs"),
                  HasSubstr("2 NUMA nodes"), HasSubstr("clock -2000 ms"),
                  AllOf(HasSubstr("ranks 1 and 2"), HasSubstr("900 us")),
                  HasSubstr("0.9 Gbit/s")));
  const Json document = DoctorJson(findings);
  EXPECT_EQ(document["advice"].size(), 9u);
  // A plan counts with the slowest link.
  EXPECT_EQ(document["network"]["gbit"], 0.9);
}

TEST(DoctorReportTest, FullDisksAreSaidOncePerMachine) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.cache_dir = "/cache";
  findings.workers[1].machine = findings.workers[0].machine;
  for (WorkerFindings& worker : findings.workers) {
    worker.shard_bytes = uint64_t{20} << 30;
    worker.report.set_threads(16);
    for (const auto& [path, gib] : {std::pair("/cache", 30), {"/logs", 6}}) {
      v1::FolderSpace* folder = worker.report.add_folders();
      folder->set_path(path);
      folder->set_free_bytes(static_cast<uint64_t>(gib) << 30);
    }
  }
  EXPECT_THAT(DoctorAdvice(findings),
              ElementsAre("rank 0 (a:50052): /cache has 30.0 GiB free, want "
                          "40.0 for packed weights, unless they are there "
                          "already"));
  EXPECT_EQ(DoctorJson(findings)["workers"][0]["folders"],
            Json::parse(R"([{"path": "/cache", "free_gib": 30.0},
                            {"path": "/logs", "free_gib": 6.0}])"));
  // Each machine has disks of its own.
  findings.workers[1].machine = "boot of b";
  EXPECT_THAT(DoctorAdvice(findings), IsEmpty());
  findings.workers[1].report.mutable_folders(1)->set_free_bytes(1 << 30);
  EXPECT_THAT(DoctorAdvice(findings),
              ElementsAre("rank 1 (b:50052): /logs has 1.0 GiB free, want "
                          "5.0"));
}

TEST(DoctorReportTest, PortsOfTheCoordinatorKeepAFleetFromStarting) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.coordinator = CoordinatorFindings{.host = "a"};
  EXPECT_THAT(DoctorAdvice(findings), IsEmpty());
  EXPECT_THAT(StartProblems(findings), IsEmpty());
  findings.coordinator->ports_in_use = {"port 50051 on a is in use"};
  EXPECT_THAT(StartProblems(findings),
              ElementsAre(absl::UnavailableError(
                  "coordinator (a): port 50051 on a is in use")));
  EXPECT_THAT(DoctorAdvice(findings),
              ElementsAre("coordinator (a): port 50051 on a is in use"));
  EXPECT_EQ(DoctorJson(findings)["coordinator"]["ports_in_use"],
            Json::array({"port 50051 on a is in use"}));
}

// The coordinator reads the small files, and one host's weights serve all.
TEST(DoctorReportTest, OneHostNeedsTheWeights) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.model = "/m";
  findings.coordinator =
      CoordinatorFindings{.host = "c", .no_config = true, .no_weights = true};
  const absl::Status no_config = absl::NotFoundError(
      "coordinator (c): no config.json in /m, want the model's small files "
      "there");
  findings.workers[0].report.set_no_weights(true);
  EXPECT_THAT(StartProblems(findings), ElementsAre(no_config));
  findings.workers[1].report.set_no_weights(true);
  EXPECT_THAT(StartProblems(findings),
              ElementsAre(no_config,
                          absl::NotFoundError(
                              "no weights in /m on c, a, b, want them on one "
                              "host, from which the others fetch them")));
  // A worker that does not answer may have them.
  findings.absent = {{2, "d:50052"}};
  EXPECT_THAT(StartProblems(findings), ElementsAre(no_config));
  findings.absent.clear();
  findings.coordinator->no_config = findings.coordinator->no_weights = false;
  EXPECT_THAT(StartProblems(findings), IsEmpty());
  // A coordinator that runs has read its files.
  findings.coordinator.reset();
  EXPECT_THAT(StartProblems(findings), IsEmpty());
}

TEST(DoctorReportTest, TheStateFolderIsSaidOnce) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.coordinator = CoordinatorFindings{
      .host = "a", .state_dir = "/state", .state_free_bytes = 1 << 30};
  EXPECT_THAT(
      DoctorAdvice(findings),
      ElementsAre("coordinator (a): /state has 1.0 GiB free, want 5.0"));
  EXPECT_EQ(DoctorJson(findings)["coordinator"]["folders"],
            Json::parse(R"([{"path": "/state", "free_gib": 1.0}])"));
  // The logs of the host's worker lie there.
  v1::FolderSpace* folder = findings.workers[0].report.add_folders();
  folder->set_path("/state");
  folder->set_free_bytes(1 << 30);
  const std::string once =
      "rank 0 (a:50052): /state has 1.0 GiB free, want 5.0";
  EXPECT_THAT(DoctorAdvice(findings), ElementsAre(once));
  findings.workers[0].host = "alpha";  // By another name.
  EXPECT_THAT(DoctorAdvice(findings), ElementsAre(once));
}

TEST(DoctorReportTest, WorkersThatDoNotAnswerAreNamed) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.workers[1].rank = 3;
  findings.absent = {{1, "c:50052"}, {2, ""}};
  EXPECT_THAT(
      DoctorAdvice(findings),
      ElementsAre(HasSubstr("rank 1 (c:50052) does not answer"),
                  HasSubstr("rank 2 (not registered) does not answer")));
  const Json document = DoctorJson(findings);
  EXPECT_EQ(document["workers"][1]["rank"], 3);
  ASSERT_EQ(document["absent"].size(), 2u);
  EXPECT_EQ(document["absent"][0], (Json{{"rank", 1}, {"address", "c:50052"}}));
  EXPECT_FALSE(DoctorJson(TwoHealthyHosts()).contains("absent"));
  // A plan for the others says so.
  const auto fleet =
      ParseMeasuredFleet(document.dump(), "doctor.json", PlanOptions());
  ASSERT_TRUE(fleet.ok()) << fleet.status();
  EXPECT_THAT(fleet->assumptions,
              ElementsAre(HasSubstr("without 2 workers that did not answer")));
}

TEST(DoctorReportTest, LinksThatWereNotMeasuredAreSaidSo) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.pairs.clear();
  findings.pairs_skipped = "worker 0 runs a model";
  const Json document = DoctorJson(findings);
  EXPECT_FALSE(document.contains("network"));
  EXPECT_EQ(document["pairs_skipped"], "worker 0 runs a model");
  EXPECT_THAT(DoctorMarkdown(findings), HasSubstr("worker 0 runs a model"));
}

TEST(DoctorReportTest, AQuickExaminationHasAnExchangeInPlaceOfRates) {
  DoctorFindings findings = TwoHealthyHosts();
  findings.quick = true;
  findings.pairs.clear();
  // Noise of an instant.
  findings.workers[1].report.mutable_products(1)->set_ops_per_second(1e9);
  findings.exchange = ExchangeFindings{.ranks = 2,
                                       .bytes = 28672,
                                       .p50_us = 31.25,
                                       .wrong = 0,
                                       .transport = "grpc"};
  const Json document = DoctorJson(findings);
  EXPECT_EQ(document["exchange"]["all_reduce_us"], 31.25);
  EXPECT_EQ(document["exchange"]["wrong"], 0);
  EXPECT_FALSE(document["workers"][0].contains("read_gbps"));
  EXPECT_FALSE(document["workers"][0].contains("int8_gops"));
  EXPECT_EQ(document["workers"][0]["isa"], "avx512_bf16");
  EXPECT_TRUE(document["advice"].empty());
  EXPECT_THAT(DoctorMarkdown(findings),
              HasSubstr("All-reduce of 28672 bytes over 2 ranks: 31.2 us over "
                        "grpc, right."));
  findings.exchange->wrong = 5;
  EXPECT_THAT(DoctorAdvice(findings),
              ElementsAre(HasSubstr("over 2 ranks has 5 wrong elements")));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
