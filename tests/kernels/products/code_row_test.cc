// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/code_row.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/products/quantize.h"
#include "kernels/products/row_packer.h"
#include "kernels/products/weight_matrix.h"

namespace ringfleet::kernels {
namespace {

constexpr float kLimit = std::numeric_limits<float>::max();

// Every byte, in an order that repeats after 256.
std::vector<uint8_t> SomeBytes(size_t count) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<uint8_t>(i * 167 + (i >> 8));
  }
  return bytes;
}

// Scales that bfloat16 has.
std::vector<float> SomeScales(size_t count) {
  std::vector<float> scales(count);
  for (size_t i = 0; i < count; ++i) {
    scales[i] = RoundToBf16(0.01f * static_cast<float>(i % 11));
  }
  return scales;
}

int Int4Code(const std::vector<uint8_t>& packed, size_t index) {
  return (packed[index / 2] >> (index % 2 * 4) & 15) - 8;
}

// The code of a column in a panel, without its offset, and its scale.
int PackedInt4Code(const WeightMatrix& matrix, size_t row, size_t column) {
  const uint8_t* group =
      matrix.Panel(row / kPanelRows) + column / kInt4Group * kInt4GroupBytes;
  const size_t in_group = column % kInt4Group;
  const uint8_t pair = group[kInt4ScaleBytes + in_group / 8 * kStepBytes +
                             row % kPanelRows * kStepLaneBytes + in_group % 4];
  return (in_group / 4 % 2 == 0 ? pair & 15 : pair >> 4) - 8;
}
uint16_t PackedInt4Scale(const WeightMatrix& matrix, size_t row,
                         size_t column) {
  uint16_t bits;
  std::memcpy(&bits,
              matrix.Panel(row / kPanelRows) +
                  column / kInt4Group * kInt4GroupBytes +
                  row % kPanelRows * sizeof(bits),
              sizeof(bits));
  return bits;
}

TEST(CodeRowTest, Int4WidensFromAnyColumn) {
  const std::vector<uint8_t> packed = SomeBytes(1500);
  const std::vector<float> scales = SomeScales(200);
  for (const size_t first : {0, 1, 31, 32, 33, 700}) {
    for (const size_t count : {1, 2, 31, 64, 2051}) {
      const CodeRow row = {.form = CodeForm::kInt4,
                           .codes = packed.data() + first / 2,
                           .skipped = first % 2,
                           .count = count,
                           .scales = scales.data() + first / 32,
                           .block = 32,
                           .offset = first % 32};
      std::vector<float> values(count);
      EXPECT_TRUE(WidenCodes(row, kLimit, values.data()));
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(values[i], static_cast<float>(Int4Code(packed, first + i)) *
                                 scales[(first + i) / 32])
            << first << " " << count << " " << i;
      }
    }
  }
}

TEST(CodeRowTest, Int8AndFp8WidenByTheirBlocks) {
  const std::vector<uint8_t> codes = SomeBytes(300);
  const std::vector<float> scales = SomeScales(20);
  for (const CodeForm form : {CodeForm::kInt8, CodeForm::kF8E4M3}) {
    const CodeRow row = {.form = form,
                         .codes = codes.data(),
                         .count = 120,
                         .scales = scales.data(),
                         .block = 48,
                         .offset = 17};
    std::vector<float> values(row.count);
    WidenCodes(row, kLimit, values.data());
    for (size_t i = 0; i < row.count; ++i) {
      const float value =
          form == CodeForm::kInt8
              ? static_cast<float>(static_cast<int8_t>(codes[i]))
              : F8E4M3ToFloat(codes[i]);
      const float want = value * scales[(17 + i) / 48];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(values[i]));
      } else {
        EXPECT_EQ(values[i], want) << i;
      }
    }
  }
}

TEST(CodeRowTest, ValuesBeyondTheLimitAreTold) {
  const std::vector<uint8_t> codes(64, 0x70);
  const float scale = 1e38f;
  std::vector<float> values(64);
  for (const CodeForm form :
       {CodeForm::kInt8, CodeForm::kF8E4M3, CodeForm::kInt4}) {
    const CodeRow row = {.form = form,
                         .codes = codes.data(),
                         .count = 64,
                         .scales = &scale,
                         .block = 64};
    EXPECT_FALSE(WidenCodes(row, kLimit, values.data()));
    RowPacker packer;
    WeightMatrix int8(WeightForm::kInt8, 1, 64), int4(WeightForm::kInt4, 1, 64);
    for (WeightMatrix* matrix : {&int8, &int4}) {
      packer.Begin(matrix);
      EXPECT_FALSE(packer.Set(0, row));
      packer.Flush();
    }
  }
}

TEST(RowPackerTest, Int4CodesAndScalesStayWhatTheyAre) {
  for (const size_t columns : {1, 31, 32, 40, 64, 33, 256}) {
    constexpr size_t kRows = 130;
    const size_t groups = (columns + 31) / 32;
    WeightMatrix matrix(WeightForm::kInt4, kRows, columns);
    RowPacker packer;
    packer.Begin(&matrix);
    const std::vector<uint8_t> packed = SomeBytes(kRows * groups * 16);
    const std::vector<float> scales = SomeScales(kRows * groups);
    for (size_t row = 0; row < kRows; ++row) {
      ASSERT_TRUE(
          packer.Set(row, CodeRow{.form = CodeForm::kInt4,
                                  .codes = packed.data() + row * groups * 16,
                                  .count = columns,
                                  .scales = scales.data() + row * groups,
                                  .block = 32}));
    }
    packer.Flush();
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t column = 0; column < groups * 32; ++column) {
        ASSERT_EQ(
            PackedInt4Code(matrix, row, column),
            column < columns ? Int4Code(packed, row * groups * 32 + column) : 0)
            << columns << " [" << row << ", " << column << "]";
        ASSERT_EQ(PackedInt4Scale(matrix, row, column),
                  FloatToBf16(scales[row * groups + column / 32]));
      }
    }
  }
}

TEST(RowPackerTest, Int8CodesAndAScaleStayWhatTheyAre) {
  constexpr size_t kRows = 70, kColumns = 50;
  WeightMatrix matrix(WeightForm::kInt8, kRows, kColumns);
  RowPacker packer;
  packer.Begin(&matrix);
  const std::vector<uint8_t> codes = SomeBytes(kRows * kColumns);
  const std::vector<float> scales = SomeScales(kRows);
  for (size_t row = 0; row < kRows; ++row) {
    // A part of a longer row.
    ASSERT_TRUE(packer.Set(row, CodeRow{.form = CodeForm::kInt8,
                                        .codes = codes.data() + row * kColumns,
                                        .count = kColumns,
                                        .scales = &scales[row],
                                        .block = 99,
                                        .offset = 20}));
  }
  packer.Flush();
  const size_t steps = (kColumns + 3) / 4;
  for (size_t row = 0; row < kRows; ++row) {
    const uint8_t* panel = matrix.Panel(row / kPanelRows);
    const size_t lane = row % kPanelRows;
    for (size_t column = 0; column < kColumns; ++column) {
      ASSERT_EQ(panel[column / 4 * kStepBytes + lane * 4 + column % 4] ^ 0x80,
                codes[row * kColumns + column]);
    }
    float scale;
    std::memcpy(&scale, panel + steps * kStepBytes + lane * 4, sizeof(scale));
    ASSERT_EQ(scale, scales[row]);
  }
}

TEST(RowPackerTest, CodesOfAnotherFormAreNotTaken) {
  const std::vector<uint8_t> codes(64, 0);
  const std::vector<float> scales(64, 0.1f);  // No bfloat16.
  const std::vector<float> bf16(64, 0.5f);
  RowPacker packer;
  const auto takes = [&](WeightForm form, CodeRow row) {
    WeightMatrix matrix(form, 1, row.count);
    row.codes = codes.data();
    packer.Begin(&matrix);
    const bool took = packer.Set(0, row);
    packer.Flush();
    return took;
  };
  const CodeRow int4 = {
      .form = CodeForm::kInt4, .count = 64, .scales = bf16.data(), .block = 32};
  EXPECT_TRUE(takes(WeightForm::kInt4, int4));
  EXPECT_FALSE(takes(WeightForm::kInt8, int4));
  EXPECT_FALSE(takes(WeightForm::kF32, int4));
  CodeRow other = int4;
  other.scales = scales.data();
  EXPECT_FALSE(takes(WeightForm::kInt4, other));
  other = int4;
  other.offset = 8;
  EXPECT_FALSE(takes(WeightForm::kInt4, other));
  other = int4;
  other.skipped = 1;
  other.count = 32;
  EXPECT_FALSE(takes(WeightForm::kInt4, other));
  other = int4;
  other.block = 64;
  EXPECT_FALSE(takes(WeightForm::kInt4, other));
  const CodeRow int8 = {.form = CodeForm::kInt8,
                        .count = 64,
                        .scales = scales.data(),
                        .block = 64};
  EXPECT_TRUE(takes(WeightForm::kInt8, int8));
  EXPECT_FALSE(takes(WeightForm::kInt4, int8));
  EXPECT_FALSE(takes(WeightForm::kBf16, int8));
  other = int8;
  other.block = 63;
  EXPECT_FALSE(takes(WeightForm::kInt8, other));
}

}  // namespace
}  // namespace ringfleet::kernels
