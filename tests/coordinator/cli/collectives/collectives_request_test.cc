// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/collectives/collectives_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/collectives/algorithm_table.h"
#include "coordinator/cli/collectives/calibration.h"
#include "coordinator/cli/collectives/collectives_report.h"

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<std::string> Cases(const CollectivesOptions& options) {
  const auto request = CollectivesRequest(options);
  if (!request.ok()) return {std::string(request.status().message())};
  std::vector<std::string> names;
  for (const v1::CollectiveCase& one : request->cases()) {
    const auto algorithm = cluster::AlgorithmText(
        static_cast<cluster::Algorithm>(one.algorithm()));
    names.push_back(absl::StrCat(
        cluster::OperationText(
            static_cast<cluster::Operation>(one.operation())),
        " ", algorithm.empty() ? "auto" : algorithm, " ",
        v1::WireDtype_Name(one.wire()).substr(11), " ", one.bytes()));
  }
  return names;
}

std::string ErrorOf(const CollectivesOptions& options) {
  const auto request = CollectivesRequest(options);
  if (request.ok()) return "accepted";
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(request.status().message());
}

TEST(CollectivesRequestTest, DefaultsAreAModelsSizes) {
  EXPECT_THAT(
      Cases({}),
      ElementsAre("all_reduce auto F32 4", "all_reduce auto F32 14336",
                  "all_reduce auto F32 28672", "all_reduce auto F32 1835008",
                  "all_reduce auto F32 7340032"));
  const auto request = CollectivesRequest({.timeout_s = 1.5});
  EXPECT_EQ(request->transport(), v1::TRANSPORT_KIND_GRPC);
  EXPECT_EQ(request->poll(), v1::POLL_MODE_AUTO);
  EXPECT_TRUE(request->pin());
  EXPECT_EQ(request->case_ms(), 2000u);
  EXPECT_EQ(request->collective_timeout_ms(), 1500u);
  EXPECT_EQ(request->algorithm_table(),
            cluster::AlgorithmTable::Default().ToJson());
}

TEST(CollectivesRequestTest, ListsCombineAndAlgorithmsVaryFastest) {
  EXPECT_THAT(
      Cases({.ops = "all_reduce",
             .bytes = "4,8",
             .algos = "two_shot,auto",
             .wires = "f32,int8"}),
      ElementsAre("all_reduce two_shot F32 4", "all_reduce auto F32 4",
                  "all_reduce two_shot F32 8", "all_reduce auto F32 8",
                  "all_reduce two_shot INT8 4", "all_reduce auto INT8 4",
                  "all_reduce two_shot INT8 8", "all_reduce auto INT8 8"));
}

TEST(CollectivesRequestTest, AllLeavesOutWhatDoesNotExist) {
  EXPECT_THAT(
      Cases({.ops = "all", .bytes = "4", .wires = "bf16"}),
      ElementsAre("all_reduce auto BF16 4", "all_gather auto BF16 4",
                  "reduce_scatter auto BF16 4", "all_to_all auto BF16 4",
                  "broadcast auto BF16 4", "barrier auto F32 0"));
  EXPECT_THAT(Cases({.ops = "all", .bytes = "4", .algos = "two_shot"}),
              ElementsAre("all_reduce two_shot F32 4"));
  EXPECT_THAT(Cases({.ops = "all", .bytes = "4,8", .algos = "ring,one_shot"}),
              Contains("barrier one_shot F32 0").Times(1));
}

TEST(CollectivesRequestTest, AlgorithmsOfANamedOperationMustExist) {
  EXPECT_EQ(ErrorOf({.ops = "all_reduce,all_gather", .algos = "two_shot"}),
            "usage: --op all_gather --algo two_shot: there is none, want auto "
            "or one_shot or ring");
  EXPECT_EQ(ErrorOf({.ops = "all_to_all", .algos = "one_shot,ring"}),
            "usage: --op all_to_all --algo ring: there is none, want auto or "
            "one_shot");
}

TEST(CollectivesRequestTest, ErrorsNameWhatThereIs) {
  EXPECT_THAT(ErrorOf({.ops = "all_reduse"}),
              HasSubstr("usage: --op: operation 'all_reduse', want one of "
                        "all_reduce, "));
  EXPECT_THAT(ErrorOf({.algos = "tree"}),
              HasSubstr("want one of one_shot, two_shot, ring, auto"));
  EXPECT_THAT(ErrorOf({.wires = "fp8"}), HasSubstr("want one of f32, bf16, "));
  EXPECT_THAT(ErrorOf({.bytes = "5"}), HasSubstr("--bytes '5'"));
  EXPECT_THAT(ErrorOf({.transport = "tcp"}), HasSubstr("want grpc or auto"));
  EXPECT_THAT(ErrorOf({.poll = "busy"}), HasSubstr("want spin, block or auto"));
  EXPECT_EQ(ErrorOf({.ops = "all_gather_matmul", .algos = "one_shot"}),
            "usage: --op all_gather_matmul --algo one_shot: there is none, "
            "want auto or ring");
  EXPECT_THAT(ErrorOf({.ops = "all_gather_matmul", .m = "12,0"}),
              HasSubstr("usage: --m '0', want rows, 1 to "));
  EXPECT_THAT(ErrorOf({.ops = "all_gather_matmul", .dtype = "int4-experts"}),
              HasSubstr("want f32, bf16, int8 or int4"));
  EXPECT_THAT(ErrorOf({.ops = "all_gather_matmul", .dtype = "fp8"}),
              HasSubstr("usage: --dtype: "));
  EXPECT_THAT(ErrorOf({.ops = "all_reduce", .tune = true}),
              HasSubstr("usage: --tune --op all_reduce, want"));
  EXPECT_THAT(ErrorOf({.wires = "f32,bf16", .tune = true}),
              HasSubstr("usage: --tune --wire f32,bf16: want one"));
  EXPECT_THAT(Cases({.ops = "all_gather_matmul", .tiles = "/absent"}),
              ElementsAre(HasSubstr("usage: --tiles: /absent: no such file")));
  EXPECT_THAT(Cases({.table = "/absent"}),
              ElementsAre(HasSubstr("usage: --table: /absent: no such file")));
}

// What would do nothing is refused, not ignored.
TEST(CollectivesRequestTest, OptionsOfProductsNeedOne) {
  constexpr char kWant[] =
      ": nothing is multiplied, want --op all_gather_matmul or "
      "matmul_reduce_scatter";
  EXPECT_EQ(
      ErrorOf(
          {.ops = "all_reduce", .m = "4", .n = 9, .k = 7, .dtype = "nonsense"}),
      absl::StrCat("usage: --m 4 with --op all_reduce", kWant));
  EXPECT_EQ(ErrorOf({.n = 9}),
            absl::StrCat("usage: --n 9 with --op all_reduce", kWant));
  EXPECT_EQ(ErrorOf({.ops = "broadcast,barrier", .k = 7}),
            absl::StrCat("usage: --k 7 with --op broadcast,barrier", kWant));
  EXPECT_EQ(ErrorOf({.dtype = "int8"}),
            absl::StrCat("usage: --dtype int8 with --op all_reduce", kWant));
  EXPECT_THAT(ErrorOf({.ops = "all", .tiles = "t.json"}),
              HasSubstr("usage: --tiles t.json with --op all_reduce,all_"));
  EXPECT_THAT(ErrorOf({.threads = 2, .calibrate = true}),
              HasSubstr("usage: --threads 2 with --op all_reduce,all_"));
  constexpr char kOne[] =
      "usage: --bytes 4k with --m 8: each says how many rows all_gather_matmul "
      "and matmul_reduce_scatter have, want one of them";
  EXPECT_EQ(ErrorOf({.ops = "all_gather_matmul", .bytes = "4k", .m = "8"}),
            kOne);
  EXPECT_EQ(ErrorOf({.bytes = "4k", .m = "8", .tune = true}), kOne);
  // Each has what it needs.
  EXPECT_THAT(
      Cases({.ops = "all_reduce,all_gather_matmul", .bytes = "4k", .m = "8"}),
      ElementsAre("all_reduce auto F32 4096",
                  "all_gather_matmul auto INT8 49152"));
}

std::vector<std::string> Products(const CollectivesOptions& options) {
  const auto request = CollectivesRequest(options);
  if (!request.ok()) return {std::string(request.status().message())};
  std::vector<std::string> all;
  for (const v1::CollectiveCase& one : request->cases()) {
    const v1::FusedProduct& product = one.product();
    all.push_back(absl::StrCat(
        product.rows(), " x ", product.inputs(), " x ", product.outputs(), " ",
        v1::Dtype_Name(product.dtype()), " of ", one.bytes()));
  }
  return all;
}

TEST(CollectivesRequestTest, ProductsHaveTheShapesOfR1OrTheirOwn) {
  EXPECT_THAT(Products({.ops = "all_gather_matmul,matmul_reduce_scatter"}),
              ElementsAre("512 x 1536 x 24576 DTYPE_INT8 of 3145728",
                          "512 x 16384 x 7168 DTYPE_INT8 of 14680064"));
  EXPECT_THAT(Products({.ops = "all_gather_matmul",
                        .m = "3,64",
                        .n = 70,
                        .k = 10,
                        .dtype = "bf16"}),
              ElementsAre("3 x 10 x 70 DTYPE_BF16 of 120",
                          "64 x 10 x 70 DTYPE_BF16 of 2560"));
  // Bytes are those of the matrix that is exchanged.
  EXPECT_THAT(Products({.ops = "matmul_reduce_scatter",
                        .bytes = "4,1m",
                        .n = 1024,
                        .k = 10}),
              ElementsAre("1 x 10 x 1024 DTYPE_INT8 of 4096",
                          "256 x 10 x 1024 DTYPE_INT8 of 1048576"));
}

// The default first, which stays where no other cut is faster.
TEST(CollectivesRequestTest, ATuningTriesCutsOfEachShape) {
  const auto request = CollectivesRequest({.m = "64", .tune = true});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->cases_size() % 2, 0);
  const int of_each = request->cases_size() / 2;
  std::set<std::string> cuts;
  for (int i = 0; i < request->cases_size(); ++i) {
    const v1::FusedProduct& product = request->cases(i).product();
    ASSERT_EQ(product.has_tiles(), i % of_each > 0) << i;
    cuts.insert(product.tiles().SerializeAsString());
  }
  EXPECT_EQ(cuts.size(), static_cast<size_t>(of_each));
  EXPECT_EQ(request->case_ms(), 300u);
}

TEST(CollectivesReportTest, OverlapIsWhatTheProductHides) {
  v1::CollectiveFigures figures;
  figures.mutable_measured()->set_operation(
      v1::COLLECTIVE_OPERATION_ALL_GATHER_MATMUL);
  v1::FusedProduct* product = figures.mutable_measured()->mutable_product();
  product->set_rows(64);
  product->set_dtype(v1::DTYPE_INT8);
  figures.set_p50_us(130);
  figures.set_unfused_us(200);
  figures.set_compute_us(100);
  figures.set_communicate_us(100);
  EXPECT_DOUBLE_EQ(OverlapOf(figures), 0.7);
  const Json rows = CollectivesJson({figures}, 2);
  EXPECT_EQ(rows[0]["m"], 64);
  EXPECT_EQ(rows[0]["dtype"], "int8");
  EXPECT_DOUBLE_EQ(rows[0]["overlap"], 0.7);
  EXPECT_THAT(CollectivesTable({figures}, 2),
              HasSubstr("| 0.13 | 0.20 | 0.10 | 0.10 | 70.0 % |"));
  figures.set_communicate_us(0);  // A single rank.
  EXPECT_EQ(OverlapOf(figures), 0);
}

TEST(CollectivesRequestTest, CalibrationMeasuresEveryAlgorithmOfItsLadder) {
  const auto cases = Cases({.calibrate = true});
  // One operation of three algorithms and three of two.
  EXPECT_THAT(cases, SizeIs((3 + 3 * 2) * CalibrationLadder().size()));
  EXPECT_THAT(cases, Each(Not(HasSubstr("auto"))));
  EXPECT_THAT(
      Cases({.ops = "broadcast", .bytes = "4k", .calibrate = true}),
      ElementsAre("broadcast one_shot F32 4096", "broadcast ring F32 4096"));
  EXPECT_THAT(ErrorOf({.ops = "barrier", .calibrate = true}),
              HasSubstr("want some of all_reduce, all_gather, "));
  EXPECT_THAT(ErrorOf({.ops = "matmul_reduce_scatter", .calibrate = true}),
              HasSubstr("want some of all_reduce, all_gather, "));
  EXPECT_THAT(ErrorOf({.ops = "matmul_reduce_scatter",
                       .algos = "one_shot,ring",
                       .tune = true}),
              HasSubstr("--tune --algo one_shot,ring: want one"));
  EXPECT_THAT(ErrorOf({.algos = "ring", .calibrate = true}),
              HasSubstr("--algo ring"));
  EXPECT_THAT(ErrorOf({.wires = "f32,bf16", .calibrate = true}),
              HasSubstr("want one wire"));
}

v1::CollectiveFigures Figures(v1::CollectiveOperation operation) {
  v1::CollectiveFigures figures;
  figures.mutable_measured()->set_operation(operation);
  figures.mutable_measured()->set_algorithm(v1::COLLECTIVE_ALGORITHM_RING);
  figures.mutable_measured()->set_wire(v1::WIRE_DTYPE_BF16);
  figures.mutable_measured()->set_bytes(4'000'000);
  figures.set_transport("grpc");
  figures.set_wire_bytes(2'000'000);
  figures.set_iterations(100);
  figures.set_p50_us(1000);
  figures.set_p99_us(1500);
  figures.set_cpu_seconds_per_gb(0.5);
  figures.set_hash(0xabcdef);
  return figures;
}

// nccl-tests, doc/PERFORMANCE.md, for 4 ranks: 4 MB in 1 ms.
TEST(CollectivesReportTest, BandwidthsFollowNcclTests) {
  const auto busbw = [](v1::CollectiveOperation operation) {
    const Bandwidths bandwidths = BandwidthsOf(Figures(operation), 4);
    EXPECT_DOUBLE_EQ(bandwidths.algbw_gbps, 4);
    return bandwidths.busbw_gbps;
  };
  EXPECT_DOUBLE_EQ(busbw(v1::COLLECTIVE_OPERATION_ALL_REDUCE), 6);
  EXPECT_DOUBLE_EQ(busbw(v1::COLLECTIVE_OPERATION_ALL_GATHER), 3);
  EXPECT_DOUBLE_EQ(busbw(v1::COLLECTIVE_OPERATION_REDUCE_SCATTER), 3);
  EXPECT_DOUBLE_EQ(busbw(v1::COLLECTIVE_OPERATION_ALL_TO_ALL), 3);
  EXPECT_DOUBLE_EQ(busbw(v1::COLLECTIVE_OPERATION_BROADCAST), 4);
  v1::CollectiveFigures barrier = Figures(v1::COLLECTIVE_OPERATION_BARRIER);
  barrier.mutable_measured()->set_bytes(0);
  EXPECT_EQ(BandwidthsOf(barrier, 4).algbw_gbps, 0);
}

TEST(CollectivesReportTest, JsonHasTheContractsKeysInOrder) {
  const Json rows = CollectivesJson(
      {Figures(v1::COLLECTIVE_OPERATION_ALL_REDUCE)}, /*world=*/4);
  EXPECT_EQ(rows.dump(),
            R"([{"op":"all_reduce","algo":"ring","wire":"bf16",)"
            R"("transport":"grpc","world":4,"bytes":4000000,"p50_us":1000.0,)"
            R"("p99_us":1500.0,"algbw_gbps":4.0,"busbw_gbps":6.0,)"
            R"("cpu_s_per_gb":0.5,"wrong":0,"hash":"0000000000abcdef",)"
            R"("wire_bytes":2000000,"iterations":100}])");
  const std::string table = CollectivesTable(
      {Figures(v1::COLLECTIVE_OPERATION_ALL_REDUCE)}, /*world=*/4);
  EXPECT_THAT(table, HasSubstr("| all_reduce | ring | bf16 | grpc | 4 | "
                               "4000000 | 1000.0 | 1500.0 | 4.000 | 6.000 | "
                               "0.500 | 0 | 0000000000abcdef |\n"));
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
