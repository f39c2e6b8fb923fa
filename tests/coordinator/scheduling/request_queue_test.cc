// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduling/request_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;

class RequestQueueTest : public ::testing::Test {
 protected:
  void Push(const std::string& id, const std::string& owner, int priority = 0) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->owner = owner;
    request->priority = priority;
    auto run = std::make_shared<coordinator::Run>();
    run->request = request;
    run->arrival = ++arrivals_;
    queue_.Push(run);
  }

  std::shared_ptr<coordinator::Run> Next() const {
    return queue_.Next([](const coordinator::Run&) { return false; });
  }

  // Takes the next run and charges its owner.
  std::string Serve(uint64_t tokens) {
    const std::shared_ptr<coordinator::Run> run = Next();
    if (run == nullptr) return "";
    queue_.Take(
        [&run](const coordinator::Run& other) { return &other == run.get(); });
    queue_.Charge(*run, tokens);
    return run->request->id;
  }

  RequestQueue queue_;
  uint64_t arrivals_ = 0;
};

TEST_F(RequestQueueTest, OneOwnersManyRequestsDoNotStarveAnother) {
  for (int i = 0; i < 500; ++i) Push("a" + std::to_string(i), "a");
  EXPECT_EQ(Serve(100), "a0");
  Push("b0", "b");
  Push("b1", "b");
  std::vector<std::string> served;
  for (int i = 0; i < 5; ++i) served.push_back(Serve(100));
  EXPECT_THAT(served, ElementsAre("a1", "b0", "a2", "b1", "a3"));
}

TEST_F(RequestQueueTest, RunsThatAreHeldLetOthersPass) {
  Push("first", "a");
  Push("second", "a");
  Push("low", "a", 1);
  const auto next = [this](std::set<std::string> held) {
    const auto run = queue_.Next([&held](const coordinator::Run& waiting) {
      return held.contains(waiting.request->id);
    });
    return run == nullptr ? "" : run->request->id;
  };
  EXPECT_EQ(next({}), "first");
  EXPECT_EQ(next({"first"}), "second");
  EXPECT_EQ(next({"first", "second"}), "low");
  EXPECT_EQ(next({"first", "second", "low"}), "");
}

TEST_F(RequestQueueTest, SharesAreThoseOfTokens) {
  for (int i = 0; i < 100; ++i) {
    Push("a" + std::to_string(i), "a");
    Push("b" + std::to_string(i), "b");
  }
  std::map<char, uint64_t> tokens;
  for (int i = 0; i < 80; ++i) {
    const bool next_is_a = Next()->request->owner == "a";
    const uint64_t cost = next_is_a ? 300 : 100;
    tokens[Serve(cost)[0]] += cost;
  }
  EXPECT_NEAR(tokens['a'], tokens['b'], 300);
}

TEST_F(RequestQueueTest, APauseSavesNothingUp) {
  for (int i = 0; i < 10; ++i) Push("a" + std::to_string(i), "a");
  for (int i = 0; i < 5; ++i) Serve(1000);
  for (int i = 0; i < 3; ++i) Push("b" + std::to_string(i), "b");
  std::vector<std::string> served;
  for (int i = 0; i < 4; ++i) served.push_back(Serve(1000));
  EXPECT_THAT(served, ElementsAre("a5", "b0", "a6", "b1"));
}

TEST_F(RequestQueueTest, PriorityPrecedesOwnersAndArrivalIsWithinThem) {
  Push("late", "a", 1);
  Push("first", "b", 0);
  Push("second", "b", 0);
  Push("urgent", "c", -1);
  std::vector<std::string> served;
  for (int i = 0; i < 4; ++i) served.push_back(Serve(10));
  EXPECT_THAT(served, ElementsAre("urgent", "first", "second", "late"));
  EXPECT_EQ(Serve(10), "");
}

}  // namespace
}  // namespace ringfleet::coordinator
