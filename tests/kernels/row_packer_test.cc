// SPDX-License-Identifier: Apache-2.0
#include "kernels/row_packer.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

std::string BytesOf(const WeightMatrix& matrix) {
  return std::string(matrix.data(), matrix.bytes());
}

TEST(RowPackerTest, StoresTheBytesThatSetRowStores) {
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16,
                                WeightForm::kInt8, WeightForm::kInt4}) {
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

TEST(WeightMatrixTest, AViewIsTheMatrixAndKeepsItsMemory) {
  const std::vector<float> values = RandomFloats(70 * 40, 3);
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16,
                                WeightForm::kInt8, WeightForm::kInt4}) {
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
