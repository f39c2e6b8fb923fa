// SPDX-License-Identifier: Apache-2.0
// Kernels that no processor chooses by itself beside each other: those that ask
// for lines in every way, and the 256-bit ones in AVX-512's encoding, which
// more machines can run than AVX-VNNI's (but for the bytes of one instruction
// they are the same code).
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hwy/base.h"
#include "kernels/isa.h"
#include "kernels/products/panel.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/products/panel_product.h"
#include "tests/kernels/random_floats.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512vnni")
#define RF_VPDPBUSD "vpdpbusd"
#include "kernels/products/panel_vnni256-inl.h"
HWY_POP_ATTRIBUTES

namespace ringfleet::kernels {
namespace {

struct Kernels {
  const char* name;
  IntegerPanelKernels kernels;
};

std::vector<Kernels> AllKernels() {
  return {{"VNNI in 256 bits", Vnni256PanelKernels()},
          {"lines foreseen", Avx512VnniPanelKernels(LinesAhead::kForeseen)},
          {"into level 1", Avx512VnniPanelKernels(LinesAhead::kIntoLevel1)},
          {"into level 2", Avx512VnniPanelKernels(LinesAhead::kIntoLevel2)}};
}

TEST(PanelKernelsTest, GiveTheSameBits) {
  if (SupportedIsas().back() < Isa::kAvx512Vnni) {
    GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  }
  ThreadPool pool(1);
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4}) {
    for (const size_t columns : {1, 4, 31, 32, 33, 64, 65, 100, 128, 300}) {
      WeightMatrix w(form, 2 * kPanelRows, columns);
      const std::vector<float> values = RandomFloats(w.rows() * columns, 1);
      for (size_t row = 0; row < w.rows(); ++row) {
        w.SetRow(row, &values[row * columns]);
      }
      for (const size_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 13, 48}) {
        const std::vector<float> x = RandomFloats(rows * columns, 2);
        Activations activations;
        activations.Assign(Activations::Form::kInt8, x.data(), rows, columns,
                           columns, pool);
        PanelBatch batch;
        for (size_t i = 0; i < rows; ++i) batch.Add(activations, i);
        for (size_t panel = 0; panel < w.num_panels(); ++panel) {
          const PanelTile expected =
              PanelProduct(HighwayPanelKernels(), w, panel, batch);
          for (const Kernels& kernels : AllKernels()) {
            const PanelTile actual =
                PanelProduct(kernels.kernels, w, panel, batch);
            ASSERT_EQ(std::memcmp(expected.values, actual.values,
                                  sizeof(expected.values)),
                      0)
                << kernels.name << ": " << WeightFormName(form) << ", "
                << columns << " columns, " << rows << " rows";
          }
        }
      }
    }
  }
}

// Widths around the 8 KB that kernels look ahead, where a panel ends in
// weights that the next one follows, or does not.
TEST(PanelKernelsTest, FloatsDoNotDependOnTheLinesAskedFor) {
  ForEachIsa([] {
    ThreadPool pool(1);
    for (const WeightForm form :
         {WeightForm::kF32, WeightForm::kBf16, WeightForm::kF32Rows}) {
      for (const size_t columns : {1, 17, 64, 127, 1023, 1024, 1030}) {
        for (const size_t outputs : {size_t{7}, 2 * kPanelRows}) {
          WeightMatrix w(form, outputs, columns);
          const std::vector<float> values = RandomFloats(outputs * columns, 3);
          for (size_t row = 0; row < outputs; ++row) {
            w.SetRow(row, &values[row * columns]);
          }
          for (const size_t rows : {1, 2, 3, 4, 5, 6, 7, 20}) {
            const std::vector<float> x = RandomFloats(rows * columns, 4);
            Activations activations;
            activations.Assign(Activations::Form::kF32, x.data(), rows, columns,
                               columns, pool);
            PanelBatch batch;
            for (size_t i = 0; i < rows; ++i) batch.Add(activations, i);
            const auto multiply = [&](LinesAhead lines, size_t next_panel) {
              PanelTile tile = {};
              if (form == WeightForm::kF32Rows) {
                MultiplyF32Rows(static_cast<const float*>(w.Row(0)),
                                std::min(outputs, kPanelRows), batch, lines,
                                tile.values);
                return tile;
              }
              const uint8_t* const next =
                  next_panel < w.num_panels() ? w.Panel(next_panel) : nullptr;
              (form == WeightForm::kF32 ? MultiplyF32Panel : MultiplyBf16Panel)(
                  w.Panel(0), batch, lines, next, tile.values);
              return tile;
            };
            const PanelTile foreseen = multiply(LinesAhead::kForeseen, 2);
            for (const LinesAhead lines :
                 {LinesAhead::kForeseen, LinesAhead::kIntoLevel1,
                  LinesAhead::kIntoLevel2}) {
              for (const size_t next_panel : {0, 1, 2}) {
                const PanelTile asked = multiply(lines, next_panel);
                ASSERT_EQ(std::memcmp(foreseen.values, asked.values,
                                      sizeof(foreseen.values)),
                          0)
                    << WeightFormName(form) << ", " << columns << " columns, "
                    << rows << " rows";
              }
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace ringfleet::kernels
