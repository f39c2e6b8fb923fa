// SPDX-License-Identifier: Apache-2.0
// One step of attention: one block of positions against up to kMaxLanes
// queries that share its keys and values. A lane is a head in the absorbed
// form, where all heads share the latents, and a query in the materialised
// form, where all queries of a head share its keys.
//
//   S[t, lane] = keys[t] . query[lane]            positions are the rows
//   P[t, lane] = softmax over t, lane by lane     online, across blocks
//   out[lane]  = sum_t P[t, lane] values[t]       lanes are the rows
//
// Both products are C[row, column] += A(row, step) * B[step][column]. A is read
// from wherever the rows lie, as scalars that are broadcast or as tiles of
// rows. B is packed so that columns fill vectors. Keys are therefore read as
// they are cached, and nothing is transposed but the queries, and for tiles the
// probabilities P.
//
// Each number depends on its own lane only, bit for bit: every sum runs over
// steps, or positions, in one order, however rows and columns are grouped. The
// order is ascending; with tiles it is AddBf16Product's, 32 numbers at a time.
// A position that a lane does not see adds an exact zero, as long as its value
// is finite.
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_BLOCK_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_BLOCK_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

struct LatentRowFormat;

// Lanes of one call: four vectors of 16 floats, which leave registers for six
// rows of sums.
inline constexpr size_t kMaxLanes = 64;
// Lanes are padded to a multiple of this.
inline constexpr size_t kLaneGroup = 16;

// 2^f = 1 + c1 f + ... + c6 f^6 on [-1/2, 1/2], interpolated at Chebyshev
// nodes: off by 1e-8, a sixth of float32's rounding.
inline constexpr float kExp2Coefficients[6] = {
    6.931471825e-01f, 2.402265072e-01f, 5.550356954e-02f,
    9.618083015e-03f, 1.339086331e-03f, 1.545316336e-04f};

struct MlaBlock {
  size_t lanes = 0;      // At most kMaxLanes.
  size_t positions = 0;  // At least 1, at most kCacheBlockPositions.
  size_t key_dim = 0;    // Numbers of a key and of a query.
  size_t value_dim = 0;
  const void* keys = nullptr;  // Rows, key_stride_bytes apart.
  size_t key_stride_bytes = 0;
  const void* queries = nullptr;  // From pack_queries.
  const void* values = nullptr;   // From pack_values.
  size_t packed_positions = 0;    // Rows that pack_values was given.
  size_t value_stride_bytes = 0;  // As pack_values was given.
  const void* next = nullptr;     // Memory of the next block; null: unknown.
  size_t next_bytes = 0;
  // [kMaxLanes]: how many of the positions a lane sees. Null: all.
  const int32_t* visible = nullptr;
  float score_scale = 0;  // Scales S; has log2(e), as P is a power of two.
  bool first = false;     // `max`, `sum` and `out` are only written.
  bool last = false;      // `out` is divided by `sum` in the end.
  // State that the next block of the lanes continues from.
  float* max = nullptr;           // [kMaxLanes], of scaled scores.
  float* sum = nullptr;           // [kMaxLanes], of P.
  float* out = nullptr;           // [lanes, value_dim]
  size_t out_stride = 0;          // In floats.
  float* scores = nullptr;        // Scratch, [kCacheBlockPositions, kMaxLanes]
  void* probabilities = nullptr;  // Scratch of the same number of elements.
};

// The operations over one element type, on one instruction set. Rows are
// elements; scratch rows are padded by PaddedNumbers.
struct MlaKernels {
  size_t element_bytes;

  // Packs queries [lanes, dim] f32, query_stride floats apart, into
  // PackedQueryElements(dim) elements.
  void (*pack_queries)(const float* queries, size_t query_stride, size_t lanes,
                       size_t dim, void* packed);
  // Packs rows of `count` positions into PackedValueElements(dim) elements.
  // Null: rows serve as they are. Requires that kLaneGroup elements behind the
  // last may be read.
  void (*pack_values)(const void* rows, size_t stride_bytes, size_t count,
                      size_t dim, void* packed);
  // Returns true if cached rows serve as keys, and as values before packing, as
  // they are.
  bool (*reads_cache)(const LatentRowFormat& format);
  // Converts `count` cached rows.
  void (*load_rows)(const LatentRowFormat& format, const char* rows,
                    size_t count, void* out, size_t stride_bytes);
  // Converts `count` rows [dim] f32, row_stride floats apart. `pad` zeros, 0 or
  // 1, follow every row: a query's number of elements is even where contraction
  // goes over pairs.
  void (*convert_rows)(const float* rows, size_t row_stride, size_t count,
                       size_t dim, size_t pad, void* out, size_t stride_bytes);
  void (*attend)(const MlaBlock& block);
};

// float32 through Highway, for every host.
const MlaKernels& MlaKernelsF32();
// bfloat16 with float32 sums, from Isa::kAvx512Bf16 on.
const MlaKernels& MlaKernelsBf16();
// bfloat16 in tiles, from Isa::kAmx on.
const MlaKernels& MlaKernelsAmx();

constexpr size_t PaddedLanes(size_t lanes) {
  return (lanes + kLaneGroup - 1) / kLaneGroup * kLaneGroup;
}

// Asks for the memory of the next block, a little with every tile: the queue of
// outstanding lines is short.
class MlaPrefetcher {
 public:
  MlaPrefetcher(const MlaBlock& block, size_t tiles)
      : next_(static_cast<const char*>(block.next)),
        end_(next_ + block.next_bytes),
        tile_bytes_(block.next_bytes / tiles + 1) {}

  void Tile() {
    constexpr size_t kLineBytes = 64;
    const char* end = next_ + tile_bytes_ < end_ ? next_ + tile_bytes_ : end_;
    for (; next_ < end; next_ += kLineBytes) {
      __builtin_prefetch(next_, /*rw=*/0, /*locality=*/2);
    }
  }

 private:
  const char* next_;
  const char* const end_;
  const size_t tile_bytes_;
};

// Elements from one row to the next in scratch.
constexpr size_t PaddedNumbers(size_t numbers) {
  return (numbers + 31) / 32 * 32;
}
constexpr size_t PackedQueryElements(size_t dim) {
  return (dim + 1) / 2 * 2 * kMaxLanes;
}
constexpr size_t PackedValueElements(size_t positions, size_t dim) {
  return (positions + 1) / 2 * 2 * ((dim + 63) / 64 * 64);
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_BLOCK_H_
