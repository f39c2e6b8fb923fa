// SPDX-License-Identifier: Apache-2.0
// kernels/products/amx_tiles.h without AMX, for int8 products only. A source
// that includes this header first computes with tiles on any processor. The
// names have internal linkage, beside the real ones of the library.
#ifndef RINGFLEET_KERNELS_PRODUCTS_AMX_TILES_H_
#define RINGFLEET_KERNELS_PRODUCTS_AMX_TILES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ringfleet::kernels {
namespace {

constexpr size_t kTileRows = 16;
constexpr size_t kTileRowBytes = 64;

struct EmulatedTile {
  size_t rows = 0;
  size_t row_bytes = 0;
  uint8_t bytes[kTileRows][kTileRowBytes] = {};
};

thread_local EmulatedTile tiles[8];

struct TileConfig {
  EmulatedTile shapes[8];

  void Set(int tile, size_t num_rows, size_t bytes) {
    shapes[tile].rows = num_rows;
    shapes[tile].row_bytes = bytes;
  }
  void Load() const {
    for (int i = 0; i < 8; ++i) tiles[i] = shapes[i];
  }
};

// What lies behind a tile's rows and columns is zero.
template <int kTile>
void LoadTile(const void* from, size_t stride) {
  EmulatedTile& tile = tiles[kTile];
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
  for (size_t row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.bytes[row], static_cast<const char*>(from) + row * stride,
                tile.row_bytes);
  }
}

template <int kTile>
void StoreTile(void* to, size_t stride) {
  const EmulatedTile& tile = tiles[kTile];
  for (size_t row = 0; row < tile.rows; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tile.bytes[row],
                tile.row_bytes);
  }
}

template <int kTile>
void ZeroTile() {
  std::memset(tiles[kTile].bytes, 0, sizeof(tiles[kTile].bytes));
}

// sums += a * b, signed by unsigned bytes in fours, int32 sums.
template <int kSums, int kA, int kB>
void AddInt8Product() {
  EmulatedTile& sums = tiles[kSums];
  const EmulatedTile& a = tiles[kA];
  const EmulatedTile& b = tiles[kB];
  for (size_t row = 0; row < sums.rows; ++row) {
    for (size_t column = 0; column < sums.row_bytes; column += 4) {
      int32_t sum;
      std::memcpy(&sum, sums.bytes[row] + column, sizeof(sum));
      for (size_t k = 0; k < a.row_bytes; ++k) {
        sum += static_cast<int8_t>(a.bytes[row][k]) *
               static_cast<int32_t>(b.bytes[k / 4][column + k % 4]);
      }
      std::memcpy(sums.bytes[row] + column, &sum, sizeof(sum));
    }
  }
}

// The registers hold nothing of use any more.
inline void ReleaseTiles() {
  for (EmulatedTile& tile : tiles) {
    std::memset(tile.bytes, 0xa5, sizeof(tile.bytes));
  }
}

}  // namespace
}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_AMX_TILES_H_
