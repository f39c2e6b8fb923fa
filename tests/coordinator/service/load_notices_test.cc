// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/load_notices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/r1_spec.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LoadNoticesTest, SayThePriceOfReproducible) {
  const cluster::ModelSpec spec = testing::R1Spec();
  v1::FleetSettings settings;
  EXPECT_THAT(LoadNotices(spec, settings), IsEmpty());
  settings.set_reproducible(true);
  EXPECT_THAT(
      LoadNotices(spec, settings),
      ElementsAre(AllOf(HasSubstr("reproducible: a prompt of 2048 tokens"),
                        HasSubstr("more multiplications, one of 8192"))));
}

TEST(LoadNoticesTest, SayHowFarDenseAttentionGoes) {
  cluster::ModelSpec spec = testing::R1Spec();
  spec.index_topk = 2048;
  v1::FleetSettings settings;
  EXPECT_THAT(LoadNotices(spec, settings),
              ElementsAre(AllOf(HasSubstr("at most 2048 positions"),
                                HasSubstr("--attention dense"))));
  settings.set_attention(v1::ATTENTION_FORM_DENSE);
  EXPECT_THAT(LoadNotices(spec, settings),
              ElementsAre(HasSubstr("beyond 2048 positions (index_topk)")));
  // Both kinds of attention are equal there.
  spec.max_position_embeddings = 2048;
  EXPECT_THAT(LoadNotices(spec, settings), IsEmpty());
}

}  // namespace
}  // namespace ringfleet::coordinator
