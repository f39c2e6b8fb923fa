// SPDX-License-Identifier: Apache-2.0
#include "worker/plan_queue.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace ringfleet::worker {
namespace {

v1::StepPlan PlanOfStep(uint64_t step) {
  v1::StepPlan plan;
  plan.set_step(step);
  return plan;
}

TEST(PlanQueueTest, PlansLeaveInTheOrderOfArrival) {
  PlanQueue queue;
  constexpr uint64_t kPlans = 500;
  std::thread producer([&] {
    for (uint64_t step = 1; step <= kPlans; ++step) {
      EXPECT_TRUE(queue.Push(PlanOfStep(step)));
    }
  });
  for (uint64_t step = 1; step <= kPlans; ++step) {
    v1::StepPlan plan;
    ASSERT_TRUE(queue.Pop(&plan));
    EXPECT_EQ(plan.step(), step);
  }
  producer.join();
}

TEST(PlanQueueTest, AFloodStopsAtEightPlans) {
  PlanQueue queue;
  std::atomic<int> accepted = 0;
  std::thread producer([&] {
    while (queue.Push(v1::StepPlan()) && accepted < 100) ++accepted;
  });
  while (accepted < 8) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  queue.Close();
  producer.join();
  EXPECT_EQ(accepted, 8);
}

TEST(PlanQueueTest, CloseWakesAWaitingPop) {
  PlanQueue queue;
  std::thread consumer([&] {
    v1::StepPlan plan;
    EXPECT_FALSE(queue.Pop(&plan));
  });
  queue.Close();
  consumer.join();
}

TEST(PlanQueueTest, CloseDropsWaitingPlansAndRefusesNewOnes) {
  PlanQueue queue;
  EXPECT_TRUE(queue.Push(PlanOfStep(1)));
  queue.Close();
  v1::StepPlan plan;
  EXPECT_FALSE(queue.Pop(&plan));
  EXPECT_FALSE(queue.Push(PlanOfStep(2)));
}

}  // namespace
}  // namespace ringfleet::worker
