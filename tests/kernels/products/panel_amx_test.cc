// SPDX-License-Identifier: Apache-2.0
// The kernels for AMX on processors without it: the source itself, with tiles
// that are emulated. What the tiles do is all that is not tested here; hosts
// that have AMX test it everywhere else.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/kernels/products/emulated_amx_tiles.h"
#include "tests/kernels/random_floats.h"

#define AmxPanelKernels EmulatedAmxPanelKernels
#include "kernels/products/panel_amx.cc"
#include "tests/kernels/products/panel_product.h"

namespace ringfleet::kernels {
namespace {

bool HasAvx512() { return SupportedIsas().back() >= Isa::kAvx512Vnni; }

// Widths of one to many units, whole and not, and as many rows as one to three
// tiles take, at equal distances and not.
TEST(PanelAmxTest, GivesTheBitsOfTheOtherKernels) {
  if (!HasAvx512()) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  ThreadPool pool(1);
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4}) {
    for (const size_t columns :
         {1, 4, 31, 63, 64, 65, 100, 128, 129, 193, 256, 257, 320, 700}) {
      WeightMatrix w(form, 2 * kPanelRows, columns);
      const std::vector<float> values = RandomFloats(w.rows() * columns, 1);
      for (size_t row = 0; row < w.rows(); ++row) {
        w.SetRow(row, &values[row * columns]);
      }
      for (const size_t rows : {0, 1, 9, 10, 13, 16, 17, 20, 26, 33, 47, 48}) {
        const std::vector<float> x = RandomFloats(rows * columns, 2);
        Activations activations;
        activations.Assign(Activations::Form::kInt8, x.data(), rows, columns,
                           columns, pool);
        for (const size_t step : {1, 7}) {
          PanelBatch batch;
          for (size_t i = 0; i < rows; ++i) {
            batch.Add(activations, i * step % rows);
          }
          for (size_t panel = 0; panel < w.num_panels(); ++panel) {
            const PanelTile expected =
                PanelProduct(HighwayPanelKernels(), w, panel, batch);
            const PanelTile actual =
                PanelProduct(AmxPanelKernels(), w, panel, batch);
            ASSERT_EQ(std::memcmp(expected.values, actual.values,
                                  sizeof(expected.values)),
                      0)
                << WeightFormName(form) << ", " << columns << " columns, "
                << rows << " rows, every " << step;
          }
        }
      }
    }
  }
}

// The largest sums that a unit can have.
TEST(PanelAmxTest, ExtremeCodesDoNotOverflow) {
  if (!HasAvx512()) GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  constexpr size_t kColumns = 300, kRows = 33;
  ThreadPool pool(1);
  for (const float weight : {3.0f, -3.0f}) {
    for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4}) {
      WeightMatrix w(form, kPanelRows, kColumns);
      const std::vector<float> values(kColumns, weight);
      for (size_t row = 0; row < w.rows(); ++row) w.SetRow(row, values.data());
      const std::vector<float> x(kRows * kColumns, -2.0f);
      Activations activations;
      activations.Assign(Activations::Form::kInt8, x.data(), kRows, kColumns,
                         kColumns, pool);
      PanelBatch batch;
      for (size_t i = 0; i < kRows; ++i) batch.Add(activations, i);
      const PanelTile expected =
          PanelProduct(HighwayPanelKernels(), w, 0, batch);
      const PanelTile actual = PanelProduct(AmxPanelKernels(), w, 0, batch);
      ASSERT_EQ(
          std::memcmp(expected.values, actual.values, sizeof(expected.values)),
          0)
          << WeightFormName(form) << " of " << weight;
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
