// SPDX-License-Identifier: Apache-2.0
// The eight tile registers of AMX (Intel, "Architecture Instruction Set
// Extensions Programming Reference", chapter 3), each up to 16 rows of 64
// bytes. Requires Isa::kAmx.
#ifndef RINGFLEET_KERNELS_PRODUCTS_AMX_TILES_H_
#define RINGFLEET_KERNELS_PRODUCTS_AMX_TILES_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

inline constexpr size_t kTileRows = 16;
inline constexpr size_t kTileRowBytes = 64;

// The operand of LDTILECFG.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void Set(int tile, size_t num_rows, size_t bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
  // Makes all registers zero.
  void Load() const { __asm__ volatile("ldtilecfg %0" : : "m"(*this)); }
};
static_assert(sizeof(TileConfig) == 64);

// Assembly instead of intrinsics: GCC 12's intrinsics take only digits for
// registers, and do not tell that they read memory.
template <int kTile>
inline void LoadTile(const void* from, size_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}

template <int kTile>
inline void StoreTile(void* to, size_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(to), "r"(stride), "i"(kTile)
                   : "memory");
}

template <int kTile>
inline void ZeroTile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// sums += a * b: signed by unsigned bytes in fours, int32 sums.
template <int kSums, int kA, int kB>
inline void AddInt8Product() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kA), "i"(kB));
}

// sums += a * b: bfloat16 in pairs, float32 sums. The even numbers of a row add
// up, then the odd ones, then both sums. Subnormal numbers count as zero.
template <int kSums, int kA, int kB>
inline void AddBf16Product() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kA), "i"(kB));
}

inline void ReleaseTiles() { __asm__ volatile("tilerelease"); }

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_PRODUCTS_AMX_TILES_H_
