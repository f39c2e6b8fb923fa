// SPDX-License-Identifier: Apache-2.0
// The products of mla_block.h in vectors:
//
//   c[row][column] = sum over steps of a(row, step) . b[step][column]
//
// Where there are factors, the sum begins with old_factor[row] *
// c[row][column], and the result is multiplied by new_factor[row]. A step has
// four bytes of every row and of every column: one float32 number, or a pair of
// bfloat16 numbers.
//
// mla_f32.cc includes this file once for each of Highway's targets, mla_bf16.cc
// once, both inside their namespace and under the attributes of the target.
// The file therefore includes nothing and has no guard. The includer defines
// what a vector is:
//
//   struct Arithmetic {
//     using Vector;   Lanes() float32 sums
//     using Columns;  a step of Lanes() columns
//     using Row;      a step of one row, in every lane
//     Zero, Set, Load, Store, Mul of Vectors
//     Row LoadRow(const char* a);
//     Columns LoadColumns(const char* b);
//     Vector MulAdd(Vector sum, Row row, Columns columns);
//     kMaxVectors     vectors of columns in a tile: 4 or 2
//     TileRows(n)     rows of a tile that has n vectors of columns, 6 or 12
//     kAsksForResults whether a tile asks for results that it only writes, so
//                     that the stores do not wait for memory
//   };

constexpr size_t kStepElementBytes = 4;

struct Product {
  const char* a = nullptr;  // Step `step` of `row` at row * a_row + step *
  size_t a_row = 0;         // a_step bytes.
  size_t a_step = 0;
  const char* b = nullptr;
  size_t b_step = 0;  // In bytes.
  size_t steps = 0;
  float* c = nullptr;
  size_t c_row = 0;  // In floats.
  const float* old_factor = nullptr;
  const float* new_factor = nullptr;
  MlaPrefetcher* prefetcher = nullptr;

  void SkipRows(size_t rows) {
    a += rows * a_row;
    c += rows * c_row;
    if (old_factor != nullptr) old_factor += rows;
    if (new_factor != nullptr) new_factor += rows;
  }
};

template <size_t kRows, size_t kVectors>
void MultiplyTile(const Product& product) {
  using A = Arithmetic;
  typename A::Vector sums[kRows][kVectors];
  RF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    RF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = A::Zero();
  }
  if (product.old_factor != nullptr) {
    RF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const typename A::Vector factor = A::Set(product.old_factor[r]);
      const float* c = product.c + r * product.c_row;
      RF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = A::Mul(A::Load(c + v * A::Lanes()), factor);
      }
    }
  } else if (A::kAsksForResults) {
    for (size_t r = 0; r < kRows; ++r) {
      const float* c = product.c + r * product.c_row;
      for (size_t v = 0; v < kVectors; ++v) {
        __builtin_prefetch(c + v * A::Lanes());
      }
    }
  }
  const char* a = product.a;
  const char* b = product.b;
  for (size_t step = 0; step < product.steps; ++step) {
    typename A::Columns columns[kVectors];
    RF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      columns[v] = A::LoadColumns(b + v * A::Lanes() * kStepElementBytes);
    }
    RF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const typename A::Row row = A::LoadRow(a + r * product.a_row);
      RF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = A::MulAdd(sums[r][v], row, columns[v]);
      }
    }
    a += product.a_step;
    b += product.b_step;
  }
  if (product.new_factor != nullptr) {
    RF_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const typename A::Vector factor = A::Set(product.new_factor[r]);
      RF_UNROLL
      for (size_t v = 0; v < kVectors; ++v) {
        sums[r][v] = A::Mul(sums[r][v], factor);
      }
    }
  }
  RF_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    float* c = product.c + r * product.c_row;
    RF_UNROLL
    for (size_t v = 0; v < kVectors; ++v) {
      A::Store(sums[r][v], c + v * A::Lanes());
    }
  }
}

template <size_t kVectors>
void MultiplyRows(Product product, size_t rows) {
  constexpr size_t kTileRows = Arithmetic::TileRows(kVectors);
  const auto whole_tiles = [&]<size_t kRows>() {
    for (; rows >= kRows; rows -= kRows) {
      if (product.prefetcher != nullptr) product.prefetcher->Tile();
      MultiplyTile<kRows, kVectors>(product);
      product.SkipRows(kRows);
    }
  };
  if constexpr (kTileRows > 6) whole_tiles.template operator()<kTileRows>();
  whole_tiles.template operator()<6>();
  switch (rows) {
    case 5:
      return MultiplyTile<5, kVectors>(product);
    case 4:
      return MultiplyTile<4, kVectors>(product);
    case 3:
      return MultiplyTile<3, kVectors>(product);
    case 2:
      return MultiplyTile<2, kVectors>(product);
    case 1:
      return MultiplyTile<1, kVectors>(product);
    default:
      return;
  }
}

// `columns` is a multiple of kLaneGroup: one vector, or an even number of them.
void Multiply(Product product, size_t rows, size_t columns) {
  const size_t width = Arithmetic::kMaxVectors * Arithmetic::Lanes();
  for (; columns >= width; columns -= width) {
    MultiplyRows<Arithmetic::kMaxVectors>(product, rows);
    product.b += width * kStepElementBytes;
    product.c += width;
  }
  switch (columns / Arithmetic::Lanes()) {
    case 3:
      return MultiplyRows<3>(product, rows);
    case 2:
      return MultiplyRows<2>(product, rows);
    case 1:
      return MultiplyRows<1>(product, rows);
    default:
      return;
  }
}

// Multiplies values whose `width` <= kMaxLanes ends within a lane group. Their
// sums pass through memory that is as wide as whole groups.
void MultiplyNarrow(Product product, size_t lanes, size_t width) {
  float sums[kMaxLanes][kMaxLanes];
  float* out = product.c;
  for (size_t lane = 0; lane < lanes && product.old_factor != nullptr; ++lane) {
    std::memset(sums[lane], 0, sizeof(sums[lane]));
    std::memcpy(sums[lane], out + lane * product.c_row, width * sizeof(float));
  }
  const size_t out_row = product.c_row;
  product.c = sums[0];
  product.c_row = kMaxLanes;
  Multiply(product, lanes, PaddedLanes(width));
  for (size_t lane = 0; lane < lanes; ++lane) {
    std::memcpy(out + lane * out_row, sums[lane], width * sizeof(float));
  }
}
