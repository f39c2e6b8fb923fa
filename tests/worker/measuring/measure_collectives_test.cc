// SPDX-License-Identifier: Apache-2.0
#include "worker/measuring/measure_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mutex.h"
#include "tests/testing/grpc_world.h"

namespace ringfleet::worker {
namespace {

using ringfleet::testing::GrpcWorld;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kPlenty = uint64_t{1} << 40;

v1::MeasureCollectivesRequest Request(int ranks) {
  v1::MeasureCollectivesRequest request;
  request.set_epoch(1);
  for (int rank = 0; rank < ranks; ++rank) {
    request.add_addresses(absl::StrCat("127.0.0.1:", rank + 1));
  }
  request.set_timeout_ms(30'000);
  request.set_collective_timeout_ms(30'000);
  request.set_ranks_on_host(ranks);
  request.set_transport(v1::TRANSPORT_KIND_GRPC);
  request.set_poll(v1::POLL_MODE_BLOCK);
  request.set_iterations(3);
  request.set_case_ms(100);
  return request;
}

void AddCase(v1::MeasureCollectivesRequest& request,
             v1::CollectiveOperation operation,
             v1::CollectiveAlgorithm algorithm, v1::WireDtype wire,
             uint64_t bytes) {
  v1::CollectiveCase* added = request.add_cases();
  added->set_operation(operation);
  added->set_algorithm(algorithm);
  added->set_wire(wire);
  added->set_bytes(bytes);
}

v1::MeasureCollectivesRequest OneCase() {
  v1::MeasureCollectivesRequest request = Request(2);
  AddCase(request, v1::COLLECTIVE_OPERATION_ALL_REDUCE,
          v1::COLLECTIVE_ALGORITHM_UNSPECIFIED, v1::WIRE_DTYPE_F32, 400);
  return request;
}

std::string ErrorOf(const v1::MeasureCollectivesRequest& request) {
  const auto plan = PlanCollectives(request, kPlenty);
  if (plan.ok()) return "accepted";
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(plan.status().message());
}

TEST(PlanCollectivesTest, TheTableChoosesUnlessTheCaseDoes) {
  v1::MeasureCollectivesRequest request = OneCase();
  AddCase(request, v1::COLLECTIVE_OPERATION_ALL_REDUCE,
          v1::COLLECTIVE_ALGORITHM_ONE_SHOT, v1::WIRE_DTYPE_BF16, 400);
  AddCase(request, v1::COLLECTIVE_OPERATION_ALL_REDUCE,
          v1::COLLECTIVE_ALGORITHM_UNSPECIFIED, v1::WIRE_DTYPE_BF16, 400);
  AddCase(request, v1::COLLECTIVE_OPERATION_BARRIER,
          v1::COLLECTIVE_ALGORITHM_UNSPECIFIED, v1::WIRE_DTYPE_F32, 17);
  // A border of 300 bytes as they travel.
  request.set_algorithm_table(
      cluster::AlgorithmTable::FromRows(
          {{cluster::Operation::kAllReduce, 2, 300, 300}})
          ->ToJson());
  const auto plan = PlanCollectives(request, kPlenty);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->cases, SizeIs(4));
  EXPECT_EQ(plan->cases[0].spec.algorithm, cluster::Algorithm::kRing);
  EXPECT_TRUE(plan->cases[0].by_table);
  EXPECT_EQ(plan->cases[0].spec.count, 100u);
  EXPECT_EQ(plan->cases[1].spec.algorithm, cluster::Algorithm::kOneShot);
  EXPECT_FALSE(plan->cases[1].by_table);
  EXPECT_EQ(plan->cases[2].spec.algorithm, cluster::Algorithm::kOneShot);
  EXPECT_EQ(plan->cases[3].spec.count, 0u);  // A barrier has no bytes.
}

// What a fused product sends follows from its shape, not from `bytes`.
TEST(PlanCollectivesTest, FusedProductsAreChosenByWhatTravels) {
  v1::MeasureCollectivesRequest request = Request(2);
  for (const auto wire : {v1::WIRE_DTYPE_BF16, v1::WIRE_DTYPE_F32}) {
    AddCase(request, v1::COLLECTIVE_OPERATION_MATMUL_REDUCE_SCATTER,
            v1::COLLECTIVE_ALGORITHM_UNSPECIFIED, wire, 0);
    v1::FusedProduct* product =
        request.mutable_cases(request.cases_size() - 1)->mutable_product();
    product->set_rows(40);
    product->set_inputs(64);
    product->set_outputs(65);
    product->set_dtype(v1::DTYPE_INT8);
  }
  request.set_algorithm_table(cluster::AlgorithmTable::FromRows(
                                  {{cluster::Operation::kMatmulReduceScatter, 2,
                                    40 * 65 * 2, 40 * 65 * 2}})
                                  ->ToJson());
  const auto plan = PlanCollectives(request, kPlenty);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->cases, SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    const cluster::Algorithm want =
        i == 0 ? cluster::Algorithm::kOneShot : cluster::Algorithm::kRing;
    EXPECT_EQ(plan->cases[i].spec.algorithm, want);
    EXPECT_EQ(plan->cases[i].fused->algorithm, want);
  }
}

TEST(PlanCollectivesTest, RefusesWhatItCannotMeasure) {
  v1::MeasureCollectivesRequest request = OneCase();
  request.clear_addresses();
  EXPECT_EQ(ErrorOf(request), "collectives: 0 addresses, want 1 to 16");
  request = OneCase();
  request.set_rank(2);
  EXPECT_EQ(ErrorOf(request), "collectives: rank 2, want 0 to 1");
  request = OneCase();
  request.clear_cases();
  EXPECT_EQ(ErrorOf(request), "collectives: 0 cases, want 1 to 4096");
  request = OneCase();
  request.set_iterations(1'000'001);
  EXPECT_THAT(ErrorOf(request), HasSubstr("1000001 iterations"));
  request = OneCase();
  request.set_algorithm_table("{");
  EXPECT_THAT(ErrorOf(request), HasSubstr("not JSON"));

  const auto second = [](v1::CollectiveOperation operation,
                         v1::CollectiveAlgorithm algorithm, v1::WireDtype wire,
                         uint64_t bytes) {
    v1::MeasureCollectivesRequest two = OneCase();
    AddCase(two, operation, algorithm, wire, bytes);
    return ErrorOf(two);
  };
  constexpr auto kSum = v1::COLLECTIVE_OPERATION_ALL_REDUCE;
  constexpr auto kTable = v1::COLLECTIVE_ALGORITHM_UNSPECIFIED;
  constexpr auto kF32 = v1::WIRE_DTYPE_F32;
  EXPECT_EQ(second(kSum, kTable, kF32, 6),
            "collectives: case 1: 6 bytes, want a multiple of 4, at most "
            "4294967296");
  EXPECT_THAT(second(kSum, kTable, kF32, ~uint64_t{3}), HasSubstr("at most"));
  EXPECT_EQ(second(v1::COLLECTIVE_OPERATION_UNSPECIFIED, kTable, kF32, 4),
            "collectives: case 1: operation 0, want 1 to 8");
  EXPECT_THAT(
      second(static_cast<v1::CollectiveOperation>(257), kTable, kF32, 4),
      HasSubstr("operation 257"));
  EXPECT_EQ(second(kSum, kTable, v1::WIRE_DTYPE_UNSPECIFIED, 4),
            "collectives: case 1: wire 0, want F32, BF16 or INT8");
  EXPECT_EQ(second(v1::COLLECTIVE_OPERATION_ALL_GATHER,
                   v1::COLLECTIVE_ALGORITHM_TWO_SHOT, kF32, 4),
            "collectives: case 1: algorithm 3 of all_gather, want one that "
            "there is");
  EXPECT_THAT(second(kSum, static_cast<v1::CollectiveAlgorithm>(258), kF32, 4),
              HasSubstr("algorithm 258"));
}

TEST(PlanCollectivesTest, VectorsMustFitIntoTheHost) {
  v1::MeasureCollectivesRequest request = OneCase();
  // Input, output, and what has arrived of the other rank.
  constexpr uint64_t kRank = 3 * 400;
  EXPECT_TRUE(PlanCollectives(request, kRank * 2 * 10 / 8).ok());
  const auto plan = PlanCollectives(request, kRank * 2);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("400 bytes"));
  // Four operations' elements as they travel.
  request.mutable_cases(0)->set_wire(v1::WIRE_DTYPE_BF16);
  constexpr uint64_t kEncoded = 4 * 200;
  EXPECT_TRUE(PlanCollectives(request, (kRank + kEncoded) * 2 * 10 / 8).ok());
  EXPECT_FALSE(
      PlanCollectives(request, (kRank + kEncoded) * 2 * 10 / 8 - 2).ok());
  request.set_ranks_on_host(1);
  EXPECT_TRUE(PlanCollectives(request, (kRank + kEncoded) * 10 / 8).ok());
}

// Ranks that were asked for different things must not meet.
TEST(PlanCollectivesTest, TheHashCoversWhatRanksShare) {
  const auto hash = [](const v1::MeasureCollectivesRequest& request) {
    return PlanCollectives(request, kPlenty).value().config_hash;
  };
  const uint64_t reference = hash(OneCase());
  v1::MeasureCollectivesRequest request = OneCase();
  request.set_rank(1);
  request.set_ranks_on_host(7);
  request.set_rank_on_host(3);
  request.set_algorithm_table(cluster::AlgorithmTable::Default().ToJson());
  EXPECT_EQ(hash(request), reference);
  request.set_algorithm_table(
      cluster::AlgorithmTable::Only(cluster::Algorithm::kRing).ToJson());
  EXPECT_NE(hash(request), reference);
  request = OneCase();
  request.mutable_cases(0)->set_bytes(404);
  EXPECT_NE(hash(request), reference);
  request = OneCase();
  request.set_iterations(4);
  EXPECT_NE(hash(request), reference);
}

TEST(MeasureCollectivesTest, RanksOverGrpcAgreeAndRankZeroReports) {
  constexpr int kRanks = 3;
  GrpcWorld world(kRanks);
  v1::MeasureCollectivesRequest request = Request(kRanks);
  request.clear_addresses();
  for (const std::string& address : world.addresses()) {
    request.add_addresses(address);
  }
  for (const auto algorithm :
       {v1::COLLECTIVE_ALGORITHM_ONE_SHOT, v1::COLLECTIVE_ALGORITHM_TWO_SHOT,
        v1::COLLECTIVE_ALGORITHM_RING}) {
    AddCase(request, v1::COLLECTIVE_OPERATION_ALL_REDUCE, algorithm,
            v1::WIRE_DTYPE_F32, 28672);
  }
  AddCase(request, v1::COLLECTIVE_OPERATION_ALL_TO_ALL,
          v1::COLLECTIVE_ALGORITHM_UNSPECIFIED, v1::WIRE_DTYPE_INT8, 1000);
  AddCase(request, v1::COLLECTIVE_OPERATION_BARRIER,
          v1::COLLECTIVE_ALGORITHM_UNSPECIFIED, v1::WIRE_DTYPE_F32, 0);

  Mutex mu;
  CondVar changed;
  int finished = 0;
  std::vector<v1::CollectiveFigures> figures;
  world.Run([&](int rank) {
    v1::MeasureCollectivesRequest mine = request;
    mine.set_rank(rank);
    uint32_t done = 0;
    const absl::Status status = MeasureCollectives(
        mine, kPlenty, world.endpoint(rank),
        [&](const v1::MeasureCollectivesProgress& progress) {
          EXPECT_EQ(progress.done(), ++done);
          EXPECT_EQ(progress.total(), 5u);
          EXPECT_EQ(progress.has_figures(), rank == 0);
          if (rank == 0) figures.push_back(progress.figures());
          return absl::OkStatus();
        },
        [&] {
          MutexLock lock(&mu);
          ++finished;
          changed.NotifyAll();
          while (finished < kRanks) changed.Wait(&mu);
        });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(done, 5u);
  });
  ASSERT_THAT(figures, SizeIs(5));
  for (const v1::CollectiveFigures& one : figures) {
    EXPECT_EQ(one.wrong(), 0u) << one.ShortDebugString();
    EXPECT_EQ(one.iterations(), 3u);
    EXPECT_EQ(one.transport(), "grpc");
  }
  EXPECT_EQ(figures[0].hash(), figures[1].hash());
  EXPECT_EQ(figures[0].wire_bytes(), 28672u);
  EXPECT_EQ(figures[3].wire_bytes(), 250u + 8);
  EXPECT_EQ(figures[3].measured().algorithm(),
            v1::COLLECTIVE_ALGORITHM_ONE_SHOT);
}

TEST(MeasureCollectivesTest, RanksThatWereAskedForDifferentThingsRefuse) {
  GrpcWorld world(2);
  std::vector<absl::StatusCode> codes(2);
  world.Run([&](int rank) {
    v1::MeasureCollectivesRequest request = Request(2);
    request.clear_addresses();
    for (const std::string& address : world.addresses()) {
      request.add_addresses(address);
    }
    request.set_rank(rank);
    AddCase(request, v1::COLLECTIVE_OPERATION_ALL_REDUCE,
            v1::COLLECTIVE_ALGORITHM_ONE_SHOT, v1::WIRE_DTYPE_F32,
            rank == 0 ? 4 : 8);
    codes[rank] = MeasureCollectives(
                      request, kPlenty, world.endpoint(rank),
                      [](const v1::MeasureCollectivesProgress&) {
                        return absl::OkStatus();
                      },
                      [] {})
                      .code();
  });
  EXPECT_THAT(codes, ElementsAre(absl::StatusCode::kFailedPrecondition,
                                 absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace ringfleet::worker
