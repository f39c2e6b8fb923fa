// SPDX-License-Identifier: Apache-2.0
// Panels of WeightForm::kReference, which OpenBLAS's serial library multiplies
// on the calling thread.
//
// Row invariance: sgemm chooses its loops by the size of a product, and
// products of few rows round differently from those of many. Every call
// therefore has kTileRows rows of activations, missing ones as zeros. The rows
// are the dimension that fills sgemm's vectors, and kTileRows is the largest
// number of rows that no kernel of the library treats differently: Haswell's
// splits 24 and more, and six rows of the other dimension from the next six.
#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <semaphore>
#include <vector>

#include "kernels/check.h"
#include "kernels/mutex.h"
#include "kernels/products/panel.h"

// The allocator of sgemm's scratch memory, in front of the library's own.
// Debian 12 builds the serial library without USE_LOCKING: two threads inside
// the allocator may get the same memory, and 3 % of small products were wrong
// with two threads. The library calls the function through its symbol table,
// where the program's definition comes first.
extern "C" void* blas_memory_alloc(int procpos) {
  using Allocate = void* (*)(int);
  static const auto allocate =
      reinterpret_cast<Allocate>(dlsym(RTLD_NEXT, "blas_memory_alloc"));
  RF_CHECK(allocate != nullptr);
  static ringfleet::Mutex mu;
  const ringfleet::MutexLock lock(&mu);
  return allocate(procpos);
}

namespace ringfleet::kernels {
namespace {

constexpr size_t kTileRows = 16;

// Calls at a time. The serial library of Debian 12 has 128 scratch buffers; its
// code for more of them frees the wrong ones.
std::counting_semaphore<> g_calls(64);

// Rows [first, first + count) of x and as many zeros as a tile wants, `stride`
// floats apart. A whole tile of evenly spaced rows is not copied.
const float* TileRows(const PanelBatch& x, size_t first, size_t count,
                      size_t* stride) {
  const float* const* const from = x.values + first;
  const ptrdiff_t step = count > 1 ? from[1] - from[0] : 0;
  bool in_place =
      count == kTileRows && step >= static_cast<ptrdiff_t>(x.columns);
  for (size_t i = 2; i < count && in_place; ++i) {
    in_place = from[i] - from[i - 1] == step;
  }
  if (in_place) {
    *stride = static_cast<size_t>(step);
    return from[0];
  }
  thread_local std::vector<float> rows;
  rows.resize(std::max(rows.size(), kTileRows * x.columns));
  for (size_t i = 0; i < count; ++i) {
    std::copy_n(from[i], x.columns, rows.data() + i * x.columns);
  }
  std::fill_n(rows.data() + count * x.columns, (kTileRows - count) * x.columns,
              0.0f);
  *stride = x.columns;
  return rows.data();
}

}  // namespace

void MultiplyReferenceRows(const float* w, size_t rows, const PanelBatch& x,
                           float* tile) {
  const int columns = static_cast<int>(x.columns);
  for (size_t first = 0; first < x.size; first += kTileRows) {
    const size_t count = std::min(kTileRows, x.size - first);
    size_t stride;
    const float* const values = TileRows(x, first, count, &stride);
    float products[kPanelRows * kTileRows];
    g_calls.acquire();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows),
                kTileRows, columns, 1.0f, w, columns, values,
                static_cast<int>(stride), 0.0f, products, kTileRows);
    g_calls.release();
    for (size_t i = 0; i < count; ++i) {
      float* const row = tile + (first + i) * kPanelRows;
      for (size_t o = 0; o < rows; ++o) row[o] = products[o * kTileRows + i];
    }
  }
}

}  // namespace ringfleet::kernels
