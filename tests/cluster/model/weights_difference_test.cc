// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/weights_difference.h"

#include <gtest/gtest.h>

#include <functional>

namespace ringfleet::cluster {
namespace {

TEST(WeightsDifferenceTest, NamesTheFirstSettingThatDiffers) {
  v1::LoadRequest held;
  held.set_model_path("/models/r1");
  held.set_dtype(v1::DTYPE_BF16);
  held.set_threads(2);
  EXPECT_EQ(WeightsDifference(held, held), "");
  const auto difference =
      [&](const std::function<void(v1::LoadRequest*)>& change) {
        v1::LoadRequest wanted = held;
        change(&wanted);
        return WeightsDifference(wanted, held);
      };
  using Request = v1::LoadRequest;
  EXPECT_EQ(difference([](Request* r) { r->set_dtype(v1::DTYPE_INT8); }),
            "dtype int8, held bf16");
  EXPECT_EQ(difference([](Request* r) { r->set_model_path("/models/v3"); }),
            "model /models/v3, held /models/r1");
  EXPECT_EQ(
      difference([](Request* r) { r->set_cache_dtype(v1::CACHE_DTYPE_INT8); }),
      "cache type int8, held unspecified");
  EXPECT_EQ(difference([](Request* r) { r->set_threads(4); }),
            "threads 4, held 2");
  EXPECT_EQ(difference([](Request* r) { r->set_without_mtp(true); }),
            "prediction layers off, held on");
  EXPECT_EQ(difference([](Request* r) { r->set_reference(true); }),
            "float32 reference on, held off");
  EXPECT_EQ(difference([](Request* r) {
              r->set_prefill_strategy(v1::PREFILL_STRATEGY_WEIGHT_GATHER);
            }),
            "prefill strategy weight_gather, held unspecified");
}

TEST(WeightsDifferenceTest, IgnoresWhatChangesNoWeight) {
  v1::LoadRequest held;
  v1::LoadRequest wanted;
  wanted.mutable_layout()->set_rank(1);
  wanted.set_context(64);
  wanted.set_slots(2);
  wanted.set_cache_positions(256);
  wanted.set_dense_attention(true);
  wanted.set_memory_limit_bytes(1);
  wanted.add_sources()->set_name("worker 0");
  wanted.set_shard_cache("/tmp");
  wanted.set_await_shard_cache(true);
  EXPECT_EQ(WeightsDifference(wanted, held), "");
}

}  // namespace
}  // namespace ringfleet::cluster
