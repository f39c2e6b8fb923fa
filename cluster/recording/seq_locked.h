// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_RECORDING_SEQ_LOCKED_H_
#define RINGFLEET_CLUSTER_RECORDING_SEQ_LOCKED_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace ringfleet::cluster {

// A value that one thread at a time writes and any thread reads. A write takes
// no lock. A reader reads again if a write happened during its read. (Boehm,
// "Can seqlocks get along with programming language memory models?", MSPC 2012.
// Each word is loaded with acquire and stored with release order instead of a
// fence, because ThreadSanitizer does not support fences. On x86 the order
// costs nothing.)
template <typename T>
class SeqLocked {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Must not run in two threads at once.
  void Store(const T& value) {
    Words words = {};
    std::memcpy(words.data(), &value, sizeof(value));
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    for (size_t i = 0; i < kWords; ++i) {
      words_[i].store(words[i], std::memory_order_release);
    }
    version_.store(version + 2, std::memory_order_release);
  }

  T Load() const {
    for (;;) {
      if (const std::optional<T> value = TryLoad()) return *value;
    }
  }

 private:
  static constexpr size_t kWords =
      (sizeof(T) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;

  std::optional<T> TryLoad() const {
    const uint64_t before = version_.load(std::memory_order_acquire);
    Words words;
    for (size_t i = 0; i < kWords; ++i) {
      words[i] = words_[i].load(std::memory_order_acquire);
    }
    if (before % 2 != 0 || version_.load(std::memory_order_relaxed) != before) {
      return std::nullopt;
    }
    T value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(value));
    return value;
  }

  std::atomic<uint64_t> version_{0};  // Odd during a Store.
  std::array<std::atomic<uint64_t>, kWords> words_ = {};
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_RECORDING_SEQ_LOCKED_H_
