// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/wire_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "cluster/collectives/frame_cuts.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

constexpr Wire kWires[] = {Wire::kF32, Wire::kBf16, Wire::kInt8};

template <typename T>
void Append(std::vector<char>& bytes, T value) {
  const char* from = reinterpret_cast<const char*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(value));
}

template <typename T>
T Read(const std::vector<char>& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// A tensor and what the header of wire_format.h says about it, element by
// element.
struct Reference {
  Wire wire;
  size_t row_elements;
  std::vector<float> values;

  size_t size() const { return values.size(); }
  bool IsBorder(size_t element) const {
    return wire == Wire::kInt8 ? element % row_elements % 128 == 0
                               : element % 32 == 0;
  }
  // Of the int8 group that begins at `element`.
  size_t GroupEnd(size_t element) const {
    size_t end = element + 1;
    while (end < size() && !IsBorder(end)) ++end;
    return end;
  }
  float Scale(size_t begin, float* inverse) const {
    float max = 0;
    for (size_t i = begin; i < GroupEnd(begin); ++i) {
      max = std::max(max, std::fabs(values[i]));
    }
    *inverse = max == 0 ? 0 : 127.0f / max;
    return max / 127.0f;
  }

  std::vector<char> Encode(size_t begin, size_t end) const {
    std::vector<char> bytes;
    std::vector<char> scales;
    float inverse = 0;
    for (size_t i = begin; i < end; ++i) {
      if (wire == Wire::kF32) Append(bytes, values[i]);
      if (wire == Wire::kBf16) Append(bytes, kernels::FloatToBf16(values[i]));
      if (wire != Wire::kInt8) continue;
      if (IsBorder(i)) Append(scales, Scale(i, &inverse));
      Append(bytes, static_cast<int8_t>(std::nearbyint(values[i] * inverse)));
    }
    bytes.insert(bytes.end(), scales.begin(), scales.end());
    return bytes;
  }

  std::vector<float> Decode(const std::vector<char>& bytes, size_t begin,
                            size_t end) const {
    std::vector<float> out;
    size_t scale_at = end - begin;
    float scale = 0;
    for (size_t i = begin; i < end; ++i) {
      const size_t at = i - begin;
      if (wire == Wire::kF32) out.push_back(Read<float>(bytes, 4 * at));
      if (wire == Wire::kBf16) {
        out.push_back(kernels::Bf16ToFloat(Read<uint16_t>(bytes, 2 * at)));
      }
      if (wire != Wire::kInt8) continue;
      if (IsBorder(i)) {
        scale = Read<float>(bytes, scale_at);
        scale_at += 4;
      }
      out.push_back(static_cast<float>(Read<int8_t>(bytes, at)) * scale);
    }
    return out;
  }
};

// Rows of 1 to 1000 elements, at most about 20000 in all; the last row of
// every other tensor ends early.
Reference RandomTensor(Wire wire, std::mt19937& generator) {
  const size_t row = 1 + generator() % 1000;
  const size_t rows = 1 + generator() % std::max<size_t>(1, 20000 / row);
  const size_t missing = generator() % 2 == 0 ? generator() % row : 0;
  Reference tensor{wire, row, std::vector<float>(row * rows - missing)};
  for (float& value : tensor.values) {
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(generator())),
                       -31 - static_cast<int>(generator() % 8));
  }
  return tensor;
}

// Any two borders in order; one in four ends with the tensor.
std::pair<size_t, size_t> RandomRange(const Reference& tensor,
                                      const WireFormat& format,
                                      std::mt19937& generator) {
  size_t begin = format.FloorToBorder(generator() % tensor.size());
  size_t end = generator() % 4 == 0
                   ? tensor.size()
                   : format.FloorToBorder(generator() % (tensor.size() + 1));
  return std::minmax(begin, end);
}

// Cuts `bytes` into pieces of 0 or 1 to `longest` bytes, each in memory of its
// own size at an odd address.
class RandomPieces {
 public:
  RandomPieces(const std::vector<char>& bytes, size_t longest,
               std::mt19937& generator) {
    for (size_t at = 0; at < bytes.size();) {
      const size_t size =
          std::min<size_t>(generator() % 8 == 0 ? 0 : 1 + generator() % longest,
                           bytes.size() - at);
      storage_.emplace_back(size + 1);
      std::copy_n(bytes.begin() + at, size, storage_.back().begin() + 1);
      at += size;
    }
    for (const std::vector<char>& piece : storage_) {
      pieces_.emplace_back(piece.data() + 1, piece.size() - 1);
    }
  }
  WireFormat::Pieces get() const { return pieces_; }

 private:
  std::vector<std::vector<char>> storage_;
  std::vector<absl::Span<const char>> pieces_;
};

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<char> Encode(const WireFormat& format, const Reference& tensor,
                         size_t begin, size_t end) {
  std::vector<char> bytes(format.EncodedBytes(begin, end));
  format.Encode(tensor.values.data() + begin, begin, end, bytes.data());
  return bytes;
}

std::vector<float> Decode(const WireFormat& format,
                          const std::vector<char>& bytes, size_t begin,
                          size_t end) {
  std::vector<float> values(end - begin);
  const absl::Span<const char> piece(bytes);
  format.Decode({&piece, 1}, begin, end, values.data());
  return values;
}

TEST(WireFormatTest, FramesLieAsDefined) {
  std::mt19937 generator(1);
  for (const Wire wire : kWires) {
    for (int round = 0; round < 300; ++round) {
      const Reference tensor = RandomTensor(wire, generator);
      const WireFormat format(wire, tensor.row_elements);
      const auto [begin, end] = RandomRange(tensor, format, generator);
      ASSERT_TRUE(Encode(format, tensor, begin, end) ==
                  tensor.Encode(begin, end))
          << begin << " to " << end << " in rows of " << tensor.row_elements;
    }
  }
}

TEST(WireFormatTest, PiecesOfAnySizeDecodeAndAccumulateAlike) {
  std::mt19937 generator(2);
  for (const Wire wire : kWires) {
    for (int round = 0; round < 300; ++round) {
      const Reference tensor = RandomTensor(wire, generator);
      const WireFormat format(wire, tensor.row_elements);
      const auto [begin, end] = RandomRange(tensor, format, generator);
      const std::vector<char> bytes = tensor.Encode(begin, end);
      const std::vector<float> want = tensor.Decode(bytes, begin, end);
      const size_t longest = round % 3 == 0 ? 5 : round % 3 == 1 ? 200 : 5000;
      const RandomPieces pieces(bytes, longest, generator);

      std::vector<float> got(end - begin);
      format.Decode(pieces.get(), begin, end, got.data());
      ASSERT_EQ(Bits(got), Bits(want));

      std::vector<float> sum(tensor.values.begin() + begin,
                             tensor.values.begin() + end);
      std::vector<float> want_sum = sum;
      for (size_t i = 0; i < sum.size(); ++i) want_sum[i] += want[i];
      std::vector<float> apart(end - begin);
      format.Accumulate(pieces.get(), begin, end, sum.data(), apart.data());
      ASSERT_EQ(Bits(apart), Bits(want_sum));
      format.Accumulate(pieces.get(), begin, end, sum.data(), sum.data());
      ASSERT_EQ(Bits(sum), Bits(want_sum));
    }
  }
}

TEST(WireFormatTest, FloorToBorderIsTheLastBorder) {
  std::mt19937 generator(3);
  for (const Wire wire : kWires) {
    for (int round = 0; round < 10; ++round) {
      const Reference tensor = RandomTensor(wire, generator);
      const WireFormat format(wire, tensor.row_elements);
      size_t want = 0;
      for (size_t i = 0; i <= tensor.size(); ++i) {
        if (tensor.IsBorder(i)) want = i;
        ASSERT_EQ(format.FloorToBorder(i), want);
      }
    }
  }
}

// One-shot and two-shot all-reduces cut differently, and must agree.
TEST(WireFormatTest, ElementsDoNotDependOnTheCutIntoFrames) {
  std::mt19937 generator(5);
  for (const Wire wire : kWires) {
    for (int round = 0; round < 50; ++round) {
      const Reference tensor = RandomTensor(wire, generator);
      const WireFormat format(wire, tensor.row_elements);
      const std::vector<float> whole = Decode(
          format, Encode(format, tensor, 0, tensor.size()), 0, tensor.size());
      std::vector<float> joined;
      for (size_t at = 0; at < tensor.size();) {
        // The first border after some element, or the tensor's end.
        size_t end = at + 1 + generator() % 5000;
        while (end < tensor.size() && !tensor.IsBorder(end)) ++end;
        end = std::min(end, tensor.size());
        const std::vector<float> part =
            Decode(format, Encode(format, tensor, at, end), at, end);
        joined.insert(joined.end(), part.begin(), part.end());
        at = end;
      }
      ASSERT_EQ(Bits(joined), Bits(whole));
    }
  }
}

TEST(WireFormatTest, RoundedValuesAreWhatWouldArrive) {
  std::mt19937 generator(7);
  for (const Wire wire : kWires) {
    for (int round = 0; round < 50; ++round) {
      const Reference tensor = RandomTensor(wire, generator);
      const WireFormat format(wire, tensor.row_elements);
      const auto [begin, end] = RandomRange(tensor, format, generator);
      std::vector<float> rounded(tensor.values.begin() + begin,
                                 tensor.values.begin() + end);
      format.Round(begin, end, rounded.data());
      ASSERT_EQ(
          Bits(rounded),
          Bits(Decode(format, Encode(format, tensor, begin, end), begin, end)));
    }
  }
}

TEST(WireFormatTest, Int8GroupsStartAnewInEveryRow) {
  const WireFormat format(Wire::kInt8, 200);  // Groups of 128 and of 72.
  EXPECT_EQ(format.FloorToBorder(127), 0u);
  EXPECT_EQ(format.FloorToBorder(199), 128u);
  EXPECT_EQ(format.FloorToBorder(200), 200u);
  EXPECT_EQ(format.FloorToBorder(330), 328u);
  EXPECT_EQ(format.EncodedBytes(0, 128), 132u);
  EXPECT_EQ(format.EncodedBytes(128, 200), 76u);
  EXPECT_EQ(format.EncodedBytes(0, 400), 416u);
  EXPECT_EQ(format.EncodedBytes(200, 330), 138u);  // The tensor ends at 330.
  EXPECT_EQ(format.EncodedBytes(200, 200), 0u);
  EXPECT_EQ(WireFormat(Wire::kInt8, 7168).EncodedBytes(0, 7168), 7392u);
}

TEST(WireFormatTest, WithoutRowsGroupsRunThrough) {
  std::mt19937 generator(7);
  Reference tensor = RandomTensor(Wire::kInt8, generator);
  tensor.values.resize(16383, 0.5f);
  tensor.row_elements = tensor.size();
  const WireFormat format(Wire::kInt8, 0);
  EXPECT_EQ(format.EncodedBytes(0, 16383), 16383u + 128 * 4);
  EXPECT_EQ(format.FloorToBorder(16383), 16256u);
  EXPECT_TRUE(Encode(format, tensor, 256, 16383) == tensor.Encode(256, 16383));
}

TEST(WireFormatTest, OnlyF32IsSentAsItLiesInMemory) {
  EXPECT_TRUE(WireFormat(Wire::kF32, 1).IdentityBytes());
  EXPECT_FALSE(WireFormat(Wire::kBf16, 1).IdentityBytes());
  EXPECT_FALSE(WireFormat(Wire::kInt8, 1).IdentityBytes());
}

TEST(WireFormatTest, EmptyRangeNeedsNoPieces) {
  for (const Wire wire : kWires) {
    const WireFormat format(wire, 100);
    EXPECT_EQ(format.EncodedBytes(100 * 32, 100 * 32), 0u);
    format.Encode(nullptr, 0, 0, nullptr);
    format.Decode({}, 0, 0, nullptr);
    format.Accumulate({}, 0, 0, nullptr, nullptr);
  }
}

// bf16 is off by at most half a unit in its last of 8 binary places; int8 by
// half a scale plus 127 units of float32 rounding for each of the four
// roundings on the way (reduce_test.cc), and one for the scale itself.
TEST(WireFormatTest, DecodedValuesAreWithinTheTypesRounding) {
  std::mt19937 generator(6);
  const double unit = 0x1p-24;
  for (int round = 0; round < 100; ++round) {
    for (const Wire wire : kWires) {
      const Reference tensor = RandomTensor(wire, generator);
      const WireFormat format(wire, tensor.row_elements);
      const std::vector<char> bytes = Encode(format, tensor, 0, tensor.size());
      const std::vector<float> got = Decode(format, bytes, 0, tensor.size());
      double bound = 0;
      for (size_t i = 0; i < tensor.size(); ++i) {
        const float value = tensor.values[i];
        if (wire == Wire::kBf16 && value != 0) {
          bound = std::ldexp(1.0, std::ilogb(value) - 8);
        } else if (wire == Wire::kInt8 && tensor.IsBorder(i)) {
          float inverse;
          bound = static_cast<double>(tensor.Scale(i, &inverse)) *
                  (1 + 2 * unit) * (0.5 + 127 * 4.1 * unit);
        }
        ASSERT_LE(std::fabs(static_cast<double>(value) - got[i]), bound);
      }
    }
  }
}

TEST(WireFormatTest, AFaultStaysVisibleInItsGroupOnly) {
  const WireFormat format(Wire::kInt8, 300);
  Reference tensor{Wire::kInt8, 300, std::vector<float>(600, 1.0f)};
  tensor.values[140] = std::numeric_limits<float>::infinity();
  tensor.values[599] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> got =
      Decode(format, Encode(format, tensor, 0, 600), 0, 600);
  for (size_t i = 0; i < 600; ++i) {
    const bool faulty = (i >= 128 && i < 256) || i >= 556;
    EXPECT_EQ(std::isnan(got[i]), faulty) << i;
    if (!faulty) {
      EXPECT_EQ(got[i], 1.0f) << i;
    }
  }
}

// Rows of one element take five bytes for each on an int8 wire.
TEST(WireFormatTest, EveryChunkFitsAFrame) {
  for (const Wire wire : {Wire::kF32, Wire::kBf16, Wire::kInt8}) {
    for (const size_t row : {0, 1, 2, 3, 4, 127, 128, 129, 7168}) {
      const WireFormat format(wire, row);
      const size_t size = 3 * kMaxFrameElements + 77;
      FrameCursor cursor(format, ElementRange{0, size});
      size_t seen = 0;
      do {
        EXPECT_LE(cursor.bytes(), kMaxPayloadBytes)
            << "row " << row << " begin " << cursor.elements().begin;
        EXPECT_EQ(cursor.elements().begin, seen);
        EXPECT_GT(cursor.elements().size(), 0u);
        seen = cursor.elements().end;
      } while (cursor.Next());
      EXPECT_EQ(seen, size);
    }
  }
}

TEST(WireFormatDeathTest, PiecesMustHoldTheFrame) {
  const WireFormat format(Wire::kBf16, 100);
  const std::vector<char> bytes(63);
  const absl::Span<const char> piece(bytes);
  float out[32];
  EXPECT_DEATH(format.Decode({&piece, 1}, 0, 32, out), "check failed");
}

}  // namespace
}  // namespace ringfleet::cluster
