// SPDX-License-Identifier: Apache-2.0
// Operations drawn at random, and what random_operations_test.cc checks them
// with.
#ifndef RINGFLEET_TESTS_CLUSTER_COLLECTIVES_RANDOM_STEPS_H_
#define RINGFLEET_TESTS_CLUSTER_COLLECTIVES_RANDOM_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/collectives/communicator.h"
#include "tests/testing/collective_cases.h"

namespace ringfleet::cluster {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Next() { return engine_(); }
  // 0 .. end - 1.
  size_t Below(size_t end) { return static_cast<size_t>(engine_() % end); }
  bool OneIn(size_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

inline uint64_t Mix(uint64_t x) {  // splitmix64's output function.
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Numbers of stream `stream`: signs and magnitudes vary, and one stream in
// four has runs of zeros, whose int8 groups have no scale.
inline std::vector<float> Values(uint64_t seed, uint64_t stream, size_t count) {
  const uint64_t start = Mix(seed + 0x9e3779b97f4a7c15u * (stream + 1));
  const bool gaps = start % 4 == 0;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(start + 0x9e3779b97f4a7c15u * i);
    const float unit = static_cast<float>(bits >> 40) / 8388608.0f - 1.0f;
    values[i] = unit * static_cast<float>(1 << (bits & 7)) / 16.0f;
    if (gaps && i / 150 % 2 == 1) values[i] = 0.0f;
  }
  return values;
}

// As RoundToWire, with the one zero that an int8 code has.
inline void ToWire(Wire wire, size_t row, std::vector<float>& values) {
  testing::RoundToWire(wire, row, values);
  if (wire != Wire::kInt8) return;
  for (float& value : values) value += 0.0f;
}

// One operation, the same on all ranks of its group.
struct Step {
  Operation operation = Operation::kBarrier;
  bool bytes = false;  // An all_gather of bytes.
  int table = 0;       // The default one, or Only(Algorithm(table - 1)).
  bool fresh = false;  // On a new communicator.
  Encoding encoding;
  size_t count = 0;
  bool in_place = false;
  int root = 0;
  size_t shift = 0;  // Elements before and behind the buffers.
  uint64_t seed = 0;
  std::vector<uint64_t> offsets;

  std::string Text() const {
    std::string text = absl::StrCat(
        OperationText(operation), bytes ? " of bytes" : "", ", table ", table,
        fresh ? " (new)" : "", ", ", WireText(encoding.wire), " in rows of ",
        encoding.row_elements, ", ", count, " elements",
        in_place ? " in place" : "", ", root ", root, ", shift ", shift,
        ", borders");
    for (const uint64_t offset : offsets) absl::StrAppend(&text, " ", offset);
    return text;
  }
};

inline constexpr Algorithm kAlgorithms[] = {
    Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kRing};

inline AlgorithmTable TableOf(const Step& step) {
  return step.table == 0 ? AlgorithmTable::Default()
                         : AlgorithmTable::Only(kAlgorithms[step.table - 1]);
}

inline size_t RandomCount(Random& random, int ranks) {
  // What all ranks together compute of one step.
  const size_t limit = 6400000 / static_cast<size_t>(ranks * ranks);
  constexpr size_t kEnds[] = {4,    4,    140,  300,   300,   1000,
                              1000, 5000, 5000, 20000, 70000, 600001};
  // The two largest are one step in 30 each.
  size_t kind = random.Below(30);
  kind = kind < 28 ? kind % 10 : kind - 18;
  return std::min(random.Below(kEnds[kind]), limit);
}

// The last place at or before `element` where a group of int8 begins.
inline size_t GroupBegin(size_t row, size_t element) {
  const size_t in_row = row == 0 ? element : element % row;
  return element - in_row % 128;
}

inline std::vector<uint64_t> RandomOffsets(Random& random, int ranks,
                                           const Step& step) {
  std::vector<uint64_t> offsets(ranks + 1, step.count);
  for (int r = 0; r < ranks; ++r) {
    offsets[r] = random.Below(step.count + 1);
    // Some shares are empty.
    if (r > 0 && random.OneIn(5)) offsets[r] = offsets[r - 1];
  }
  if (!random.OneIn(8)) offsets[0] = 0;
  std::sort(offsets.begin(), offsets.end());
  const bool aligned = random.OneIn(2);
  for (uint64_t& offset : offsets) {
    if (offset == step.count) break;
    if (!step.bytes && step.encoding.wire == Wire::kInt8) {
      offset = GroupBegin(step.encoding.row_elements, offset);
    } else if (aligned) {
      offset -= offset % 32;
    }
  }
  return offsets;
}

inline Step RandomStep(uint64_t seed, int ranks) {
  Random random(seed);
  Step step;
  constexpr Operation kOperations[] = {
      Operation::kAllReduce,     Operation::kAllReduce,
      Operation::kAllGather,     Operation::kAllGather,
      Operation::kAllToAll,      Operation::kBroadcast,
      Operation::kReduceScatter, Operation::kReduceScatter};
  step.operation =
      random.OneIn(20) ? Operation::kBarrier : kOperations[random.Below(8)];
  step.bytes = step.operation == Operation::kAllGather && random.OneIn(2);
  step.table = static_cast<int>(random.Below(4));
  step.fresh = random.OneIn(4);
  step.encoding.wire = static_cast<Wire>(random.Below(3));
  constexpr size_t kRows[] = {0, 0, 1, 100, 128, 300, 1000, 7168};
  step.encoding.row_elements = kRows[random.Below(8)];
  step.count = RandomCount(random, ranks);
  step.in_place = random.OneIn(2);
  step.root = static_cast<int>(random.Below(ranks));
  step.shift = random.Below(4);
  step.seed = random.Next();
  step.offsets = RandomOffsets(random, ranks, step);
  return step;
}

// Bytes of the float32 elements [offsets.front(), offsets.back()) as they
// travel.
inline uint64_t EncodedBytes(const Encoding& encoding, size_t begin,
                             size_t end) {
  if (encoding.wire == Wire::kF32) return 4 * (end - begin);
  if (encoding.wire == Wire::kBf16) return 2 * (end - begin);
  uint64_t groups = 0;
  for (size_t i = begin; i < end; ++i) {
    groups += GroupBegin(encoding.row_elements, i) == i ? 1 : 0;
  }
  return end - begin + 4 * groups;
}

// Elements between others that must stay as they are.
template <typename T>
class Buffer {
 public:
  Buffer(size_t count, size_t shift)
      : shift_(shift), memory_(count + 2 * shift, Filler()) {}
  Buffer(const std::vector<T>& values, size_t shift)
      : Buffer(values.size(), shift) {
    std::copy(values.begin(), values.end(), memory_.begin() + shift);
  }

  absl::Span<T> span() {
    return absl::MakeSpan(memory_).subspan(shift_, memory_.size() - 2 * shift_);
  }

  // The elements [begin, end) are `want`, and those outside the buffer and, if
  // `rest`, outside the range are as they were.
  absl::Status Check(size_t begin, size_t end, const T* want,
                     bool rest = true) const {
    const T filler = Filler();
    for (size_t i = 0; i < memory_.size(); ++i) {
      const size_t at = i - shift_;  // Wraps around before the buffer.
      const T* expected = &filler;
      if (i >= shift_ && at >= begin && at < end) {
        expected = want + (at - begin);
      } else if (!rest && i >= shift_ && i + shift_ < memory_.size()) {
        continue;
      }
      if (std::memcmp(&memory_[i], expected, sizeof(T)) != 0) {
        return absl::InternalError(absl::StrCat(
            "element ", static_cast<int64_t>(i) - static_cast<int64_t>(shift_),
            " is ", +memory_[i], ", want ", +*expected));
      }
    }
    return absl::OkStatus();
  }

 private:
  static T Filler() {
    T filler;
    std::memset(&filler, 0x5a, sizeof(T));
    return filler;
  }

  const size_t shift_;
  std::vector<T> memory_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_TESTS_CLUSTER_COLLECTIVES_RANDOM_STEPS_H_
