// SPDX-License-Identifier: Apache-2.0
// The 256-bit kernels in AVX-512's encoding, which more machines can run than
// AVX-VNNI's: but for the bytes of one instruction they are the same code.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hwy/base.h"
#include "kernels/isa.h"
#include "kernels/panel.h"
#include "tests/kernels/random_floats.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512vnni")
#define RF_VPDPBUSD "vpdpbusd"
#include "kernels/panel_vnni256-inl.h"
HWY_POP_ATTRIBUTES

namespace ringfleet::kernels {
namespace {

TEST(PanelVnni256Test, GivesTheBitsOfTheOtherKernels) {
  if (SupportedIsas().back() < Isa::kAvx512Vnni) {
    GTEST_SKIP() << "this processor has no AVX-512 VNNI";
  }
  ThreadPool pool(1);
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4}) {
    const auto kernel = [form](const IntegerPanelKernels& kernels) {
      return form == WeightForm::kInt8 ? kernels.int8 : kernels.int4;
    };
    for (const size_t columns : {1, 4, 31, 32, 33, 64, 65, 100, 128, 300}) {
      WeightMatrix w(form, 2 * kPanelRows, columns);
      const std::vector<float> values = RandomFloats(w.rows() * columns, 1);
      for (size_t row = 0; row < w.rows(); ++row) {
        w.SetRow(row, &values[row * columns]);
      }
      for (const size_t rows : {1, 2, 3, 4, 7, 48}) {
        const std::vector<float> x = RandomFloats(rows * columns, 2);
        Activations activations;
        activations.Assign(Activations::Form::kInt8, x.data(), rows, columns,
                           columns, pool);
        PanelBatch batch;
        for (size_t i = 0; i < rows; ++i) batch.Add(activations, i);
        PanelTile expected;
        PanelTile actual;
        for (size_t panel = 0; panel < w.num_panels(); ++panel) {
          kernel(HighwayPanelKernels())(w.Panel(panel), batch, nullptr,
                                        expected.values);
          kernel(Vnni256PanelKernels())(w.Panel(panel), batch, nullptr,
                                        actual.values);
          ASSERT_EQ(std::memcmp(expected.values, actual.values,
                                rows * kPanelRows * sizeof(float)),
                    0)
              << WeightFormName(form) << " " << columns << " columns, " << rows
              << " rows";
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
