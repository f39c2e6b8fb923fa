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

// A loop is cut into this many pieces for each thread. A thread takes several
// at once, half of its part of those that are left: guided self-scheduling
// (Polychronopoulos and Kuck, 1987). So long ranges, in which a thread reads
// memory on and on, come first, and short ones last, so that a thread that the
// system or the memory slows down keeps the others waiting for little. With
// four equal ranges a thread the caller waited for 4 to 8 % of the time in
// loops of one token of R1's layers, of 8 and of prompts, now for 1 to 3 (two
// threads of Zen 4).
constexpr size_t kPiecesPerThread = 32;
constexpr size_t kPartsPerThread = 2;

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

// Returns true if `done` comes true within kSpin.
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

// One word says which loop is open and which of its pieces is next; taking
// pieces is a compare-and-swap of it. A thread that holds some keeps the loop
// open, so what it read of the loop before it took them was this loop's; one
// that wakes up late finds another number and takes nothing. The caller waits
// only for threads that hold pieces.
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

  void ParallelFor(size_t count, size_t num_pieces, const Body& body) {
    RF_CHECK(!open_.exchange(true));  // Not nested, one caller at a time.
    // A thread that read the last word of the loop before, and then the
    // numbers of this one, must not find that word again.
    const uint64_t before = LoopOf(next_.load());
    next_.store(before << kPieceBits | kClosed);
    body_.store(&body, std::memory_order_relaxed);
    count_.store(count, std::memory_order_relaxed);
    num_pieces_.store(num_pieces, std::memory_order_relaxed);
    pieces_done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = before + 1;
    next_.store(loop << kPieceBits);
    if (sleeping_.load() > 0) {
      MutexLock lock(&mu_);
      opened_.NotifyAll();
    }
    RunPieces(loop);
    const auto done = [this, num_pieces] {
      return pieces_done_.load() == num_pieces;
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
  static constexpr int kPieceBits = 24;
  // A piece that no loop has.
  static constexpr uint64_t kClosed = (uint64_t{1} << kPieceBits) - 1;
  static uint64_t LoopOf(uint64_t next) { return next >> kPieceBits; }
  static uint64_t PieceOf(uint64_t next) { return next & kClosed; }

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
      RunPieces(seen);
    }
  }

  // Takes pieces of `loop` until none is left. Their lengths differ by one at
  // most.
  void RunPieces(uint64_t loop) {
    const size_t parts = kPartsPerThread * static_cast<size_t>(threads());
    for (;;) {
      uint64_t next = next_.load();
      const Body* body = body_.load(std::memory_order_relaxed);
      const size_t count = count_.load(std::memory_order_relaxed);
      const size_t num_pieces = num_pieces_.load(std::memory_order_relaxed);
      const size_t piece = PieceOf(next);
      if (LoopOf(next) != loop || piece >= num_pieces) return;
      const size_t taken = std::max<size_t>((num_pieces - piece) / parts, 1);
      if (!next_.compare_exchange_weak(next, next + taken)) continue;
      const auto begin_of = [&](size_t i) {
        return i * (count / num_pieces) + std::min(i, count % num_pieces);
      };
      (*body)(begin_of(piece), begin_of(piece + taken));
      if (pieces_done_.fetch_add(taken) + taken == num_pieces &&
          caller_sleeps_) {
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
  // The open loop's body; written while no thread can take a piece.
  std::atomic<const Body*> body_{nullptr};
  std::atomic<size_t> count_{0};
  std::atomic<size_t> num_pieces_{0};
  alignas(64) std::atomic<uint64_t> next_{0};  // Loop, piece.
  alignas(64) std::atomic<size_t> pieces_done_{0};
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
  const size_t num_pieces = std::min(count / std::max<size_t>(grain, 1),
                                     num_threads * kPiecesPerThread);
  if (count == 0) return;
  if (num_threads == 1 || num_pieces <= 1) {
    body(0, count);
    return;
  }
  impl_->ParallelFor(count, num_pieces, body);
}

}  // namespace ringfleet::kernels
