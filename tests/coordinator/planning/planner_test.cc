// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/published_configs.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::coordinator {
namespace {

using cluster::CacheBytes;
using cluster::FormsOf;
using cluster::HostSpec;
using cluster::ModelSpec;
using cluster::Wire;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

PlanRequest R1Request(int hosts, uint64_t memory_gib) {
  PlanRequest request;
  request.inputs.spec = testing::R1Spec();
  request.inputs.hosts.assign(hosts, {.name = "host",
                                      .memory_bytes = memory_gib * kGib,
                                      .read_bytes_per_second = 200e9,
                                      .int8_ops_per_second = 8e12,
                                      .threads = 32});
  request.inputs.network = {.bytes_per_second = 10e9 / 8,
                            .latency_seconds = 20e-6};
  request.context = 4096;
  return request;
}

TEST(DistinctExpertsTest, CountsWithoutReplacement) {
  EXPECT_NEAR(DistinctExperts(256, 8, 1), 8, 1e-9);
  EXPECT_NEAR(DistinctExperts(256, 8, 8), 57, 1);
  EXPECT_NEAR(DistinctExperts(256, 8, 32), 163, 1);
  EXPECT_NEAR(DistinctExperts(256, 8, 128), 252, 1);
}

TEST(MeanMaximumTest, AgreesWithSmallCasesByHand) {
  EXPECT_DOUBLE_EQ(MeanMaximum(16, 0.5, 1), 8);
  EXPECT_DOUBLE_EQ(MeanMaximum(16, 1, 4), 16);
  // Of two coins the better one is heads in 3 of 4 cases.
  EXPECT_DOUBLE_EQ(MeanMaximum(1, 0.5, 2), 0.75);
  // Two throws of two coins each: 0, 1, 2 heads are the maximum in 1/16, 8/16
  // and 7/16 of the cases.
  EXPECT_DOUBLE_EQ(MeanMaximum(2, 0.5, 2), 8.0 / 16 + 2 * 7.0 / 16);
}

TEST(AllReduceCostTest, FollowsTheAlgorithmOfTheTable) {
  const NetworkSpec network = {.bytes_per_second = 1e9,
                               .latency_seconds = 100e-6};
  EXPECT_EQ(AllReduceCost(14336, 1, network).seconds, 0);
  // One shot between two ranks: one message and its bytes.
  const ExchangeCost two = AllReduceCost(14336, 2, network);
  EXPECT_DOUBLE_EQ(two.sent_bytes, 14336);
  EXPECT_NEAR(two.seconds,
              100e-6 + kMessageSeconds + 14336 / (1e9 * kPayloadShare), 1e-9);
  // Megabytes between eight take two shots, of 2 (N - 1) / N of the bytes.
  const ExchangeCost large = AllReduceCost(4 << 20, 8, network);
  EXPECT_DOUBLE_EQ(large.sent_bytes, (4 << 20) * 2.0 * 7 / 8);
  EXPECT_GT(large.seconds, 2 * 100e-6 + large.sent_bytes / 1e9);
}

TEST(PlannerTest, R1NeedsItsPublishedReads) {
  PlanRequest request = R1Request(1, 1024);
  request.context = 1;
  const FleetPlan plan = MakeFleetPlan(request);
  ASSERT_TRUE(plan.fits);
  // 36.62e9 weights are touched by a token: a byte each, the router four,
  // scales and W_UK's half of kv_b in its own place.
  const double bytes = plan.choice.decode.bytes_read;
  EXPECT_NEAR(bytes, 36.62e9 + 3 * 0.106e9, 0.01 * bytes);
  EXPECT_EQ(plan.choice.decode.collectives, 0);
  EXPECT_TRUE(plan.alternatives.empty());
  // One host is bound by its memory: a little more than bytes / rate.
  EXPECT_GT(plan.choice.decode.seconds(), bytes / 200e9);
  EXPECT_LT(plan.choice.decode.seconds(), 1.1 * bytes / 200e9);
}

TEST(PlannerTest, TwoAllReducesALayer) {
  const FleetPlan plan = MakeFleetPlan(R1Request(8, 128));
  ASSERT_TRUE(plan.fits);
  EXPECT_EQ(plan.choice.decode.collectives, 122);
  EXPECT_TRUE(plan.choice.runnable);
  EXPECT_EQ(plan.choice.strategy.mesh.world_size(), 8);
  EXPECT_EQ(plan.choice.strategy.mesh.data, 1);
}

TEST(PlannerTest, OneSequenceDividesEveryExpert) {
  // Of 8 experts the busiest of 8 ranks has two or three.
  const FleetPlan plan = MakeFleetPlan(R1Request(8, 128));
  EXPECT_EQ(plan.choice.strategy.mesh.tensor, 8);
}

TEST(PlannerTest, ListsEveryStrategyAndWhyItLoses) {
  const FleetPlan plan = MakeFleetPlan(R1Request(4, 256));
  bool pipeline = false;
  int data_groups = 0;
  std::set<v1::PrefillStrategy> prefills;
  for (const Candidate& candidate : plan.alternatives) {
    pipeline |= candidate.strategy.kind == StrategyKind::kPipeline;
    data_groups += candidate.strategy.mesh.data > 1;
    EXPECT_FALSE(candidate.why_not.empty()) << candidate.strategy.Name();
    EXPECT_GT(candidate.decode_tps, 0);
    EXPECT_GT(candidate.prefill_tps, 0);
    const bool runs = candidate.strategy.kind == StrategyKind::kMesh;
    EXPECT_EQ(candidate.runnable, runs) << candidate.strategy.Name();
    if (!runs) {
      EXPECT_THAT(candidate.why_not, HasSubstr("this program"));
    } else if (candidate.strategy.mesh.tensor ==
                   plan.choice.strategy.mesh.tensor &&
               candidate.strategy.mesh.data == 1) {
      prefills.insert(candidate.strategy.prefill);
      EXPECT_EQ(candidate.decode_tps, plan.choice.decode_tps);
      EXPECT_LT(candidate.prefill_tps, plan.choice.prefill_tps);
    }
  }
  EXPECT_TRUE(pipeline);
  EXPECT_EQ(data_groups, 1);  // The best of them.
  EXPECT_THAT(prefills, ElementsAre(v1::PREFILL_STRATEGY_REPLICATED,
                                    v1::PREFILL_STRATEGY_WEIGHT_GATHER));
}

// Many long sequences: reading the cache that all ranks of a group hold costs
// more than sending tokens to other groups' experts.
TEST(PlannerTest, LongCachesAreDividedOverDataGroups) {
  PlanRequest request = R1Request(16, 128);
  request.batch = 32;
  request.context = 8192;
  const FleetPlan plan = MakeFleetPlan(request);
  ASSERT_TRUE(plan.fits);
  EXPECT_GT(plan.choice.strategy.mesh.data, 1);
  EXPECT_TRUE(plan.choice.runnable);
  double one_group = 0;
  for (const Candidate& candidate : plan.alternatives) {
    EXPECT_EQ(candidate.strategy.mesh.data > 1 && candidate.runnable &&
                  candidate.decode_tps > plan.choice.decode_tps,
              false);
    if (candidate.strategy.mesh.data == 1 && candidate.runnable) {
      one_group = std::max(one_group, candidate.decode_tps);
    }
  }
  EXPECT_GT(plan.choice.decode_tps, 1.2 * one_group);
  // Each group's cache holds its own sequences.
  EXPECT_EQ(plan.choice.ranks[0].cache_bytes,
            CacheBytes(request.inputs.spec, request.inputs.cache_dtype,
                       32 / plan.choice.strategy.mesh.data, 8192));
}

// What is exchanged beside products costs its software until it takes longer.
TEST(PlannerTest, ExchangesOfPromptsHideBehindProducts) {
  const auto prefill = [](double gbit, Wire wire) {
    PlanRequest request = R1Request(2, 1024);
    request.inputs.wire = wire;
    request.inputs.network.bytes_per_second = gbit * 1e9 / 8;
    return MakeFleetPlan(request).choice.prefill_tps;
  };
  const double fast = prefill(1000, Wire::kBf16);
  EXPECT_GT(prefill(100, Wire::kBf16), 0.97 * fast);
  EXPECT_LT(prefill(0.1, Wire::kBf16), 0.5 * fast);
  // Twice the bytes, hidden just the same: at 12 GB/s of the link and 2.5 GB/s
  // of software another part in thirty.
  EXPECT_GT(prefill(100, Wire::kF32), 0.95 * fast);
}

// A reason names what differs in the digits that it shows. What only changes
// prompts takes as long in every part of a decode step.
TEST(PlannerTest, AReasonIsADifference) {
  const FleetPlan plan = MakeFleetPlan(R1Request(4, 256));
  int reasons = 0;
  for (const Candidate& candidate : plan.alternatives) {
    const std::string& text = candidate.why_not;
    const size_t at = text.find(" ms a step instead of ");
    if (candidate.strategy.prefill != v1::PREFILL_STRATEGY_AUTO) {
      EXPECT_EQ(at, std::string::npos) << text;
    }
    if (at == std::string::npos) continue;
    ++reasons;
    const std::string own = text.substr(0, at);
    EXPECT_NE(own.substr(own.rfind(' ') + 1), text.substr(text.rfind(' ') + 1))
        << text;
  }
  EXPECT_GE(reasons, 3);
}

TEST(PlannerTest, MoreOfAnythingIsNotSlower) {
  const auto tps = [](const PlanRequest& request) {
    const FleetPlan plan = MakeFleetPlan(request);
    return std::pair(plan.choice.decode_tps, plan.choice.prefill_tps);
  };
  const PlanRequest base = R1Request(8, 128);
  const auto [decode, prefill] = tps(base);
  PlanRequest more = base;
  for (HostSpec& host : more.inputs.hosts) host.read_bytes_per_second *= 2;
  EXPECT_GT(tps(more).first, decode);
  more = base;
  for (HostSpec& host : more.inputs.hosts) host.int8_ops_per_second *= 2;
  EXPECT_GT(tps(more).second, prefill);
  more = base;
  more.inputs.network.latency_seconds /= 2;
  EXPECT_GT(tps(more).first, decode);
  more = base;
  more.inputs.network.bytes_per_second *= 2;
  EXPECT_GT(tps(more).second, prefill);
  more = base;
  more.batch = 8;
  EXPECT_GT(tps(more).first, decode);
  more = base;
  more.context *= 4;
  EXPECT_LT(tps(more).first, decode);
}

TEST(PlannerTest, MaxPositionsIsTheLastThatFits) {
  PlanRequest request = R1Request(8, 96);
  const FleetPlan plan = MakeFleetPlan(request);
  ASSERT_GT(plan.max_positions, 128u);
  request.context = static_cast<int64_t>(plan.max_positions);
  const FleetPlan full = MakeFleetPlan(request);
  EXPECT_TRUE(full.fits);
  EXPECT_EQ(full.choice.strategy.Name(), plan.choice.strategy.Name());
  request.context += 1;  // Another mesh may leave more; this one can't.
  const FleetPlan beyond = MakeFleetPlan(request);
  EXPECT_TRUE(!beyond.fits ||
              beyond.choice.strategy.Name() != plan.choice.strategy.Name());
}

TEST(PlannerTest, SaysHowManyHostsWouldDo) {
  const FleetPlan plan = MakeFleetPlan(R1Request(2, 128));
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.max_positions, 0u);
  ASSERT_TRUE(plan.hosts_needed.has_value());
  const int hosts = plan.hosts_needed->hosts;
  EXPECT_TRUE(MakeFleetPlan(R1Request(hosts, 128)).fits);
  EXPECT_FALSE(MakeFleetPlan(R1Request(hosts - 1, 128)).fits);
  // The replicated embedding, router and latents' products alone need more.
  EXPECT_FALSE(MakeFleetPlan(R1Request(2, 12)).hosts_needed.has_value());
}

TEST(PlannerTest, OneSmallHostDecidesWhatFits) {
  PlanRequest request = R1Request(8, 128);
  const FleetPlan even = MakeFleetPlan(request);
  request.inputs.hosts[3].memory_bytes = 90 * kGib;
  const FleetPlan uneven = MakeFleetPlan(request);
  EXPECT_TRUE(uneven.fits);
  EXPECT_LT(uneven.max_positions, even.max_positions);
  EXPECT_LT(uneven.choice.ranks[3].free_bytes,
            uneven.choice.ranks[2].free_bytes);
  request.inputs.hosts[3].memory_bytes = 60 * kGib;
  const FleetPlan small = MakeFleetPlan(request);
  EXPECT_FALSE(small.fits);
  for (const Candidate& candidate : small.alternatives) {
    if (candidate.strategy.kind == StrategyKind::kMesh) {
      EXPECT_THAT(candidate.why_not, HasSubstr("rank 3 needs"));
    }
  }
}

// Parts are even, so the slowest host is waited for.
TEST(PlannerTest, OneSlowHostSetsThePace) {
  PlanRequest request = R1Request(8, 128);
  request.inputs.hosts[5].read_bytes_per_second /= 4;
  const double slow = MakeFleetPlan(request).choice.decode_tps;
  for (HostSpec& host : request.inputs.hosts) {
    host.read_bytes_per_second = 50e9;
  }
  EXPECT_NEAR(MakeFleetPlan(request).choice.decode_tps, slow, 0.01 * slow);
}

TEST(PlannerTest, HeadsThatDoNotDivideLeaveNobodyOut) {
  PlanRequest request = R1Request(6, 192);
  const FleetPlan plan = MakeFleetPlan(request);
  ASSERT_TRUE(plan.fits);
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t most = 0;
  for (const RankMemory& rank : plan.choice.ranks) {
    least = std::min(least, rank.weights.total());
    most = std::max(most, rank.weights.total());
  }
  EXPECT_GT(most, least);  // 21 and 22 heads.
  EXPECT_LT(most, least + least / 20);
}

// Hosts that people have for these models, with a context of 4096.
TEST(PlannerTest, FamiliesFitTheirHosts) {
  struct Fit {
    nlohmann::json config;
    int hosts;
    uint64_t memory_gib;
    v1::Dtype dtype;
  };
  for (const auto& [config, hosts, memory_gib, dtype] : std::vector<Fit>{
           {testing::KimiK25Config(), 4, 192, v1::DTYPE_INT4_EXPERTS},
           {testing::Glm53Config(), 4, 128, v1::DTYPE_INT4_EXPERTS},
           {testing::Glm53Config(), 8, 96, v1::DTYPE_INT4_EXPERTS},
           {testing::Glm47FlashConfig(), 1, 24, v1::DTYPE_INT4_EXPERTS},
           {nlohmann::json::parse(testing::R1Config()), 4, 192,
            v1::DTYPE_INT8}}) {
    PlanRequest request = R1Request(hosts, memory_gib);
    request.inputs.spec = cluster::ParseModelSpec(config.dump()).value();
    request.inputs.forms = FormsOf(dtype, request.inputs.spec);
    EXPECT_TRUE(MakeFleetPlan(request).fits)
        << request.inputs.spec.architecture << " on " << hosts;
    // Half of the memory is too little for weights.
    for (HostSpec& host : request.inputs.hosts) host.memory_bytes /= 2;
    EXPECT_FALSE(MakeFleetPlan(request).fits)
        << request.inputs.spec.architecture << " on " << hosts;
  }
}

TEST(PlannerTest, MoreThanSixteenWorkersCannotRun) {
  const FleetPlan plan = MakeFleetPlan(R1Request(32, 64));
  EXPECT_TRUE(plan.fits);
  EXPECT_FALSE(plan.choice.runnable);
}

TEST(PlanTableTest, HasEveryCellInOrder) {
  const std::vector<TableCell> cells =
      PlanTable(R1Request(8, 128), {1, 8, 64}, {1, 32}, {2048, 8192});
  ASSERT_EQ(cells.size(), 12u);
  EXPECT_FALSE(cells[0].fits);
  EXPECT_EQ(cells[4].hosts, 8);
  EXPECT_TRUE(cells[4].fits);
  EXPECT_GT(cells[4].decode_tps, cells[5].decode_tps);  // Longer context.
  EXPECT_FALSE(cells[8].runnable);
}

TEST(PlannerTest, TinyModelsAndTooManyRanksDoNotBreakIt) {
  for (const ModelSpec& spec : {testing::TinyV3Spec(), testing::TinyV2Spec(),
                                testing::TinyV2LiteSpec()}) {
    PlanRequest request = R1Request(16, 1);
    request.inputs.spec = spec;
    request.context = 16;
    for (const auto form :
         {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_INT8, v1::DTYPE_INT4}) {
      request.inputs.forms = FormsOf(form, spec);
      const FleetPlan plan = MakeFleetPlan(request);
      EXPECT_TRUE(plan.fits);
      EXPECT_TRUE(std::isfinite(plan.choice.decode_tps));
      EXPECT_GT(plan.choice.decode_tps, 0);
      EXPECT_GT(plan.choice.prefill_tps, 0);
    }
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
