// SPDX-License-Identifier: Apache-2.0
#include "cluster/recording/round_trips.h"

#include <gtest/gtest.h>

namespace ringfleet::cluster {
namespace {

TEST(RoundTripsTest, TellTheShortestOfTheLatest) {
  RoundTrips trips;
  EXPECT_EQ(trips.Shortest(3), 0u);
  trips.Note(3, 50);
  trips.Note(3, 80);
  EXPECT_EQ(trips.Shortest(3), 50u);
  EXPECT_EQ(trips.Shortest(2), 0u);
  for (size_t i = 2; i < RoundTrips::kWindow; ++i) trips.Note(3, 80);
  EXPECT_EQ(trips.Shortest(3), 50u);
  trips.Note(3, 70);
  EXPECT_EQ(trips.Shortest(3), 70u);
}

TEST(RoundTripsTest, ForgetAnEpochAndIgnoreUnknownPeers) {
  RoundTrips trips;
  trips.Note(0, 5);
  trips.Note(-1, 5);
  trips.Note(RoundTrips::kPeers, 5);
  trips.Clear();
  EXPECT_EQ(trips.Shortest(0), 0u);
  trips.Note(0, 9);
  EXPECT_EQ(trips.Shortest(0), 9u);
}

}  // namespace
}  // namespace ringfleet::cluster
