// SPDX-License-Identifier: Apache-2.0
#include "kernels/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "kernels/mutex.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ringfleet::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// Chunks a thread can expect: a few, so that one that is slowed down by the
// system leaves its share to the others.
constexpr size_t kChunksPerThread = 4;

// How long a thread looks for the next loop before it sleeps: what lies
// between two products of a step, an all-reduce of another host included.
// Waking a thread that sleeps takes 5 to 50 us.
constexpr auto kSpin = std::chrono::microseconds(300);
// Looks between two glances at the clock. From then on the thread gives its
// CPU to whoever else wants it.
constexpr int kLooks = 256;

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Whether `done` came true within kSpin.
template <typename Done>
bool Spin(Done done) {
  Clock::time_point until;
  for (bool first = true;; first = false) {
    for (int i = 0; i < kLooks; ++i) {
      if (done()) return true;
      Pause();
    }
    const Clock::time_point now = Clock::now();
    if (first) {
      until = now + kSpin;
    } else if (now >= until) {
      return false;
    }
    std::this_thread::yield();
  }
}

// Refused, the thread runs wherever the system puts it.
void StayOn(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus);
}

}  // namespace

// One word says which loop is open and which of its chunks is next; taking a
// chunk is a compare-and-swap of it. A thread that holds a chunk keeps the
// loop open, so what it read of the loop before it took the chunk was this
// loop's; one that wakes up late finds another number and takes nothing. The
// caller waits only for threads that hold a chunk.
class ThreadPool::Impl {
 public:
  using Body = absl::FunctionRef<void(size_t begin, size_t end)>;

  Impl(int threads, absl::Span<const int> cpus)
      : pinned_(cpus.size() == static_cast<size_t>(threads)) {
    threads_.reserve(threads - 1);
    for (int i = 1; i < threads; ++i) {
      threads_.emplace_back([this, cpu = pinned_ ? cpus[i] : -1] {
        if (cpu >= 0) StayOn(cpu);
        RunThread();
      });
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
  bool pinned() const { return pinned_; }

  void ParallelFor(size_t count, size_t num_chunks, const Body& body) {
    RF_CHECK(!open_.exchange(true));  // Not nested, one caller at a time.
    // A thread that read the last word of the loop before, and then the
    // numbers of this one, must not find that word again.
    const uint64_t before = LoopOf(next_.load());
    next_.store(before << kChunkBits | kClosed);
    body_.store(&body, std::memory_order_relaxed);
    count_.store(count, std::memory_order_relaxed);
    num_chunks_.store(num_chunks, std::memory_order_relaxed);
    chunks_done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = before + 1;
    next_.store(loop << kChunkBits);
    if (sleeping_.load() > 0) {
      MutexLock lock(&mu_);
      opened_.NotifyAll();
    }
    RunChunks(loop);
    const auto done = [this, num_chunks] {
      return chunks_done_.load() == num_chunks;
    };
    if (!Spin(done)) {
      MutexLock lock(&mu_);
      caller_sleeps_ = true;
      while (!done()) finished_.Wait(&mu_);
      caller_sleeps_ = false;
    }
    open_.store(false);
  }

 private:
  static constexpr int kChunkBits = 24;
  // A chunk that no loop has.
  static constexpr uint64_t kClosed = (uint64_t{1} << kChunkBits) - 1;
  static uint64_t LoopOf(uint64_t next) { return next >> kChunkBits; }
  static uint64_t ChunkOf(uint64_t next) { return next & kClosed; }

  void RunThread() {
    uint64_t seen = 0;
    const auto another = [&] {
      return LoopOf(next_.load()) != seen || stopping_.load();
    };
    for (;;) {
      if (!Spin(another)) {
        MutexLock lock(&mu_);
        ++sleeping_;
        while (!another()) opened_.Wait(&mu_);
        --sleeping_;
      }
      if (stopping_) return;
      seen = LoopOf(next_.load());
      RunChunks(seen);
    }
  }

  // Takes chunks of `loop` until none is left. The chunks' lengths differ by
  // one at most.
  void RunChunks(uint64_t loop) {
    for (;;) {
      uint64_t next = next_.load();
      const Body* body = body_.load(std::memory_order_relaxed);
      const size_t count = count_.load(std::memory_order_relaxed);
      const size_t num_chunks = num_chunks_.load(std::memory_order_relaxed);
      const size_t chunk = ChunkOf(next);
      if (LoopOf(next) != loop || chunk >= num_chunks) return;
      if (!next_.compare_exchange_weak(next, next + 1)) continue;
      const size_t length = count / num_chunks;
      const size_t longer = count % num_chunks;
      const size_t begin = chunk * length + std::min(chunk, longer);
      (*body)(begin, begin + length + (chunk < longer ? 1 : 0));
      if (chunks_done_.fetch_add(1) + 1 == num_chunks && caller_sleeps_) {
        MutexLock lock(&mu_);
        finished_.NotifyOne();
      }
    }
  }

  const bool pinned_;
  std::vector<std::thread> threads_;
  CondVar opened_;
  CondVar finished_;
  std::atomic<bool> open_{false};
  // Of the open loop; written while no thread can take a chunk.
  std::atomic<const Body*> body_{nullptr};
  std::atomic<size_t> count_{0};
  std::atomic<size_t> num_chunks_{0};
  alignas(64) std::atomic<uint64_t> next_{0};  // Loop, chunk.
  alignas(64) std::atomic<size_t> chunks_done_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  Mutex mu_;
};

ThreadPool::ThreadPool(int threads, absl::Span<const int> cpus)
    : impl_(std::make_unique<Impl>(std::max(threads, 1), cpus)) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads(); }
bool ThreadPool::pinned() const { return impl_->pinned(); }

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
