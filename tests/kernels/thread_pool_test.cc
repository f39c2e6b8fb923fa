// SPDX-License-Identifier: Apache-2.0
#include "kernels/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/mutex.h"

namespace ringfleet::kernels {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const size_t count : {0, 1, 2, 7, 16, 17, 1000}) {
      for (const size_t grain : {0, 1, 3, 1000, 5000}) {
        // Plain integers: two calls on one index would be a race, and a
        // missing wait for the others would be one with the check below.
        std::vector<int> calls(count, 0);
        pool.ParallelFor(count, grain, [&](size_t begin, size_t end) {
          ASSERT_LT(begin, end);
          for (size_t i = begin; i < end; ++i) ++calls[i];
        });
        EXPECT_TRUE(std::all_of(calls.begin(), calls.end(),
                                [](int n) { return n == 1; }));
      }
    }
  }
}

TEST(ThreadPoolTest, PinnedThreadsStayOnTheirCpus) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) last = cpu;
  }
  EXPECT_FALSE(ThreadPool(2).pinned());
  ThreadPool pool(3, {last, last, last});
  EXPECT_TRUE(pool.pinned());
  const std::thread::id caller = std::this_thread::get_id();
  // Every thread of the pool takes a chunk: none ends before all have begun.
  std::atomic<int> begun{0};
  pool.ParallelFor(3, 1, [&](size_t, size_t) {
    ++begun;
    while (begun < 3) std::this_thread::yield();
    cpu_set_t own;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof(own), &own);
    if (std::this_thread::get_id() == caller) {
      EXPECT_TRUE(CPU_EQUAL(&own, &all));
    } else {
      EXPECT_EQ(CPU_COUNT(&own), 1);
      EXPECT_TRUE(CPU_ISSET(last, &own));
    }
  });
}

TEST(ThreadPoolTest, RangesAreAtLeastTheGrain) {
  ThreadPool pool(3);
  for (const size_t count : {10, 11, 19, 20, 101}) {
    std::atomic<size_t> shortest{count};
    pool.ParallelFor(count, 10, [&](size_t begin, size_t end) {
      size_t seen = shortest.load();
      while (end - begin < seen &&
             !shortest.compare_exchange_weak(seen, end - begin)) {
      }
    });
    EXPECT_GE(shortest.load(), 10u);
  }
}

// A thread takes a fourth of what is left, of two threads, then less and less,
// so that the other waits at most for the last of 64 pieces.
TEST(ThreadPoolTest, RangesBecomeShorter) {
  constexpr size_t kPieces = 64;
  constexpr size_t kPiece = 10;
  ThreadPool pool(2);
  std::vector<size_t> length_at(kPieces * kPiece, 0);
  pool.ParallelFor(kPieces * kPiece, 1, [&](size_t begin, size_t end) {
    length_at[begin] = end - begin;
  });
  std::vector<size_t> lengths;
  for (size_t i = 0; i < length_at.size(); i += length_at[i]) {
    ASSERT_GT(length_at[i], 0u);
    lengths.push_back(length_at[i]);
  }
  EXPECT_EQ(lengths.front(), kPieces * kPiece / 4);
  EXPECT_EQ(lengths.back(), kPiece);
  EXPECT_TRUE(std::is_sorted(lengths.rbegin(), lengths.rend()));
  EXPECT_LT(lengths.size(), kPieces / 3);
}

TEST(ThreadPoolTest, APoolOfOneRunsOnTheCaller) {
  ThreadPool pool(1);
  const std::thread::id caller = std::this_thread::get_id();
  int calls = 0;
  pool.ParallelFor(100, 1, [&](size_t begin, size_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0u);
    EXPECT_EQ(end, 100u);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

// Each chunk waits until all threads hold one: this returns only if every
// thread of the pool really takes part.
TEST(ThreadPoolTest, AllThreadsWorkAtTheSameTime) {
  constexpr size_t kThreads = 4;
  ThreadPool pool(kThreads);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Mutex mu;
    CondVar arrived;
    size_t num_arrived = 0;
    pool.ParallelFor(kThreads, 1, [&](size_t begin, size_t end) {
      MutexLock lock(&mu);
      ++num_arrived;
      arrived.NotifyAll();
      while (num_arrived < kThreads) arrived.Wait(&mu);
    });
    EXPECT_EQ(num_arrived, kThreads);
  }
}

TEST(ThreadPoolTest, ManyShortLoopsSeeTheWritesOfTheOneBefore) {
  ThreadPool pool(4);
  std::vector<int> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.ParallelFor(values.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) ++values[(i + round) % 64];
    });
  }
  EXPECT_TRUE(std::all_of(values.begin(), values.end(),
                          [](int n) { return n == 2000; }));
}

TEST(ThreadPoolTest, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace ringfleet::kernels
