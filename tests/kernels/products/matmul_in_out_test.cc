// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/matmul_in_out.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

// One addition after the other, over odd sizes and every kind of tile.
TEST(MatMulInOutTest, AddsInAscendingOrderWhateverTheTiles) {
  for (const size_t depth : {0, 1, 7, 64, 100}) {
    for (const size_t columns : {0, 1, 31, 32, 33, 64, 97}) {
      constexpr size_t kRows = 9;
      const std::vector<float> x = RandomFloats(kRows * depth, 1);
      const std::vector<float> b = RandomFloats(depth * columns, 2);
      std::vector<float> want(kRows * columns);
      for (size_t i = 0; i < kRows; ++i) {
        for (size_t o = 0; o < columns; ++o) {
          for (size_t k = 0; k < depth; ++k) {
            want[i * columns + o] += x[i * depth + k] * b[k * columns + o];
          }
        }
      }
      ThreadPool pool(2);
      Activations activations;
      activations.Assign(Activations::Form::kF32, x.data(), kRows, depth, depth,
                         pool);
      const std::vector<RowRange> ranges = {{1, 4}, {4, 8}};
      for (const size_t width : {0, 1, 32, 50}) {
        for (const size_t height : {0, 1, 33}) {
          std::vector<float> y(kRows * columns, 7);
          const MatMulInOutArgs args = {.b = b.data(),
                                        .depth = depth,
                                        .columns = columns,
                                        .x = &activations,
                                        .ranges = ranges,
                                        .y = y.data(),
                                        .y_stride = columns,
                                        .first_y = 1,
                                        .tile_columns = width,
                                        .tile_depth = height};
          for (size_t tile = 0; tile < NumTiles(args); ++tile) {
            MultiplyTile(args, tile);
          }
          for (size_t i = 0; i < kRows * columns; ++i) {
            const size_t row = 1 + i / columns;
            ASSERT_EQ(y[i], row < 8 ? want[row * columns + i % columns] : 7)
                << depth << " by " << columns << " in tiles of " << height
                << " by " << width;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
