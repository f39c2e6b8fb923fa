// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/row_packer.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr WeightForm kAllForms[] = {
    WeightForm::kF32,  WeightForm::kBf16,    WeightForm::kInt8,
    WeightForm::kInt4, WeightForm::kF32Rows, WeightForm::kBf16Rows};

std::string BytesOf(const WeightMatrix& matrix) {
  return std::string(matrix.data(), matrix.bytes());
}

TEST(RowPackerTest, StoresTheBytesThatSetRowStores) {
  for (const WeightForm form : kAllForms) {
    for (const auto& [rows, columns] : std::vector<std::pair<size_t, size_t>>{
             {1, 1}, {16, 4}, {17, 7}, {64, 128}, {65, 33}, {130, 250}}) {
      const std::vector<float> values = RandomFloats(rows * columns, 7);
      WeightMatrix want(form, rows, columns), got(form, rows, columns);
      for (size_t row = 0; row < rows; ++row) {
        want.SetRow(row, values.data() + row * columns);
      }
      // The second half first, as another thread might; ranges end anywhere.
      RowPacker packer;
      packer.Begin(&got);
      const size_t half = rows / 2;
      for (const auto& [first, last] :
           std::vector<std::pair<size_t, size_t>>{{half, rows}, {0, half}}) {
        for (size_t row = first; row < last; ++row) {
          packer.Set(row, values.data() + row * columns);
        }
        packer.Flush();
      }
      EXPECT_EQ(BytesOf(got), BytesOf(want))
          << WeightFormName(form) << " [" << rows << ", " << columns << "]";
    }
  }
}

// Rows of fp8 among others, in whole and in begun groups of 16; one that is not
// finite sets nothing, and its place is taken by another.
TEST(RowPackerTest, RowsOfFp8AreStoredAsTheirValuesAre) {
  constexpr size_t kRows = 70, kColumns = 200;
  std::vector<uint8_t> codes(kRows * kColumns);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i * 2654435761u >> 11);
    if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0;
  }
  const std::vector<float> scales = {0.5f, 0.03f, 2.0f};
  WeightMatrix want(WeightForm::kInt8, kRows, kColumns);
  WeightMatrix got(WeightForm::kInt8, kRows, kColumns);
  RowPacker packer;
  packer.Begin(&got);
  for (size_t row = 0; row < kRows; ++row) {
    const CodeRow stored = {.codes = codes.data() + row * kColumns,
                            .count = kColumns,
                            .scales = scales.data(),
                            .block = 96,
                            .offset = 32};
    std::vector<float> values(kColumns);
    for (size_t i = 0; i < kColumns; ++i) {
      values[i] = F8E4M3ToFloat(stored.codes[i]) * scales[(32 + i) / 96];
    }
    want.SetRow(row, values.data());
    if (row % 16 == 5 || row == 16) {
      std::vector<uint8_t> bad(stored.codes, stored.codes + kColumns);
      bad[row] = 0xff;
      CodeRow not_finite = stored;
      not_finite.codes = bad.data();
      EXPECT_FALSE(packer.Set(row, not_finite));
      packer.Set(row, values.data());
    } else {
      EXPECT_TRUE(packer.Set(row, stored));
    }
  }
  packer.Flush();
  EXPECT_EQ(BytesOf(got), BytesOf(want));
}

TEST(WeightMatrixTest, AViewIsTheMatrixAndKeepsItsMemory) {
  const std::vector<float> values = RandomFloats(70 * 40, 3);
  for (const WeightForm form : kAllForms) {
    auto owner = std::make_shared<WeightMatrix>(form, 70, 40);
    for (size_t row = 0; row < 70; ++row) {
      owner->SetRow(row, values.data() + row * 40);
    }
    const std::string bytes = BytesOf(*owner);
    const std::weak_ptr<WeightMatrix> alive = owner;
    const char* data = owner->data();
    WeightMatrix view =
        WeightMatrix::View(form, 70, 40, data, std::move(owner));
    WeightMatrix moved = std::move(view);
    EXPECT_FALSE(alive.expired());
    EXPECT_EQ(BytesOf(moved), bytes);
    EXPECT_EQ(moved.form(), form);
    EXPECT_EQ(moved.panel_bytes(), WeightMatrix(form, 70, 40).panel_bytes());
    std::vector<float> got(40), want(40);
    moved.GetRow(69, got.data());
    alive.lock()->GetRow(69, want.data());
    EXPECT_EQ(got, want);
    moved = WeightMatrix();
    EXPECT_TRUE(alive.expired());
  }
}

}  // namespace
}  // namespace ringfleet::kernels
