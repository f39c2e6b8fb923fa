// SPDX-License-Identifier: Apache-2.0
#include "worker/service/bounded_queue.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace ringfleet::worker {
namespace {

TEST(BoundedQueueTest, ItemsLeaveInTheOrderOfArrival) {
  BoundedQueue<int> queue;
  constexpr int kItems = 500;
  std::thread producer([&] {
    for (int i = 1; i <= kItems; ++i) {
      EXPECT_TRUE(queue.Push(i));
    }
  });
  for (int i = 1; i <= kItems; ++i) {
    int item = 0;
    ASSERT_TRUE(queue.Pop(&item));
    EXPECT_EQ(item, i);
  }
  producer.join();
}

TEST(BoundedQueueTest, AFloodStopsAtEightItems) {
  BoundedQueue<int> queue;
  std::atomic<int> accepted = 0;
  std::thread producer([&] {
    while (queue.Push(0) && accepted < 100) ++accepted;
  });
  while (accepted < 8) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  queue.Close();
  producer.join();
  EXPECT_EQ(accepted, 8);
}

TEST(BoundedQueueTest, CloseWakesAWaitingPop) {
  BoundedQueue<int> queue;
  std::thread consumer([&] {
    int item = 0;
    EXPECT_FALSE(queue.Pop(&item));
  });
  queue.Close();
  consumer.join();
}

TEST(BoundedQueueTest, CloseDropsWaitingItemsAndRefusesNewOnes) {
  BoundedQueue<int> queue;
  EXPECT_TRUE(queue.Push(1));
  queue.Close();
  int item = 0;
  EXPECT_FALSE(queue.Pop(&item));
  EXPECT_FALSE(queue.Push(2));
}

TEST(BoundedQueueTest, FinishLetsWaitingItemsLeaveAndRefusesNewOnes) {
  BoundedQueue<int> queue;
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  queue.Finish();
  EXPECT_FALSE(queue.Push(3));
  int item = 0;
  EXPECT_TRUE(queue.Pop(&item));
  EXPECT_EQ(item, 1);
  EXPECT_TRUE(queue.Pop(&item));
  EXPECT_EQ(item, 2);
  EXPECT_FALSE(queue.Pop(&item));
}

}  // namespace
}  // namespace ringfleet::worker
