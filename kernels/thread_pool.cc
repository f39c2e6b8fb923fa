// SPDX-License-Identifier: Apache-2.0
#include "kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "kernels/mutex.h"

namespace ringfleet::kernels {
namespace {

// Chunks a thread can expect: a few, so that one that is slowed down by the
// system leaves its share to the others.
constexpr size_t kChunksPerThread = 4;

}  // namespace

// A loop is open while its chunks are handed out. A thread that wakes up late
// finds it closed and sleeps on: the caller waits only for threads that hold a
// chunk, never for one that has yet to be scheduled.
class ThreadPool::Impl {
 public:
  using Body = absl::FunctionRef<void(size_t begin, size_t end)>;

  explicit Impl(int threads) {
    threads_.reserve(threads - 1);
    for (int i = 1; i < threads; ++i) {
      threads_.emplace_back([this] { RunThread(); });
    }
  }

  ~Impl() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
    }
    opened_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  void ParallelFor(size_t count, size_t num_chunks, const Body& body) {
    {
      MutexLock lock(&mu_);
      RF_CHECK(loop_.body == nullptr);  // Not nested, one caller at a time.
      loop_ = {.body = &body, .count = count, .num_chunks = num_chunks};
      next_chunk_.store(0, std::memory_order_relaxed);
      ++generation_;
    }
    opened_.NotifyAll();
    RunChunks({.body = &body, .count = count, .num_chunks = num_chunks});
    MutexLock lock(&mu_);
    loop_.body = nullptr;
    while (num_busy_ > 0) idle_.Wait(&mu_);
  }

 private:
  struct Loop {
    const Body* body = nullptr;  // Null while no loop is open.
    size_t count = 0;
    size_t num_chunks = 0;
  };

  void RunThread() {
    uint64_t seen = 0;
    for (;;) {
      Loop loop;
      {
        MutexLock lock(&mu_);
        while (!stopping_ && (loop_.body == nullptr || generation_ == seen)) {
          opened_.Wait(&mu_);
        }
        if (stopping_) return;
        seen = generation_;
        loop = loop_;
        ++num_busy_;
      }
      RunChunks(loop);
      MutexLock lock(&mu_);
      if (--num_busy_ == 0) idle_.NotifyOne();
    }
  }

  // Takes chunks until none is left. The chunks' lengths differ by one at
  // most.
  void RunChunks(const Loop& loop) {
    const size_t length = loop.count / loop.num_chunks;
    const size_t longer = loop.count % loop.num_chunks;
    for (;;) {
      const size_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= loop.num_chunks) return;
      const size_t begin = chunk * length + std::min(chunk, longer);
      (*loop.body)(begin, begin + length + (chunk < longer ? 1 : 0));
    }
  }

  std::vector<std::thread> threads_;
  CondVar opened_;
  CondVar idle_;
  std::atomic<size_t> next_chunk_{0};
  Mutex mu_;
  Loop loop_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  int num_busy_ ABSL_GUARDED_BY(mu_) = 0;  // Threads inside RunChunks.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

ThreadPool::ThreadPool(int threads)
    : impl_(std::make_unique<Impl>(std::max(threads, 1))) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads(); }

void ThreadPool::ParallelFor(
    size_t count, size_t grain,
    absl::FunctionRef<void(size_t begin, size_t end)> body) {
  const size_t num_threads = static_cast<size_t>(impl_->threads());
  const size_t num_chunks = std::min(count / std::max<size_t>(grain, 1),
                                     num_threads * kChunksPerThread);
  if (count == 0) return;
  if (num_threads == 1 || num_chunks <= 1) {
    body(0, count);
    return;
  }
  impl_->ParallelFor(count, num_chunks, body);
}

}  // namespace ringfleet::kernels
