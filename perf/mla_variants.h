// SPDX-License-Identifier: Apache-2.0
// One decode step of one attention layer (DeepSeek-V2's sizes by default) in
// the five forms in which latent attention has been compared. The forms differ
// in the rows that are cached and in the time of a product. All give the same
// result up to rounding.
//
//   CD        keys and values of every head are cached
//   CC        latents are cached and expanded in every step
//   A_CC      absorbed; latents and rope keys are copied for every head
//   A_CC_ME   absorbed; all heads read the one cache as it lies
//   AM_CC_ME  as A_CC_ME, with the absorbed weights multiplied beforehand
#ifndef RINGFLEET_PERF_MLA_VARIANTS_H_
#define RINGFLEET_PERF_MLA_VARIANTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/aligned_buffer.h"
#include "kernels/attention/mla.h"
#include "kernels/dtype.h"
#include "kernels/products/activations.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/thread_pool.h"

namespace ringfleet::perf {

enum class MlaVariant { kCd, kCc, kACc, kACcMe, kAmCcMe };

inline constexpr MlaVariant kMlaVariants[] = {
    MlaVariant::kCd, MlaVariant::kCc, MlaVariant::kACc, MlaVariant::kACcMe,
    MlaVariant::kAmCcMe};

absl::string_view MlaVariantName(MlaVariant variant);

struct MlaShape {
  size_t hidden = 5120;
  size_t heads = 128;
  size_t q_rank = 1536;
  size_t rank = 512;
  size_t rope = 64;
  size_t nope = 128;
  size_t v = 128;

  size_t key() const { return nope + rope; }
  size_t expanded() const { return nope + v; }
  size_t cached() const { return rank + rope; }
};

// The cost of one step with a query for each of `batch` sequences of `context`
// positions.
struct MlaCost {
  double cache_bytes = 0;      // Kept for the sequences.
  double temporary_bytes = 0;  // Beside the cache, during the step.
  double weight_bytes = 0;     // From the q latent to the layer's output.
  double flops = 0;  // Multiplications and additions, also of weights.
};
MlaCost CostOf(MlaVariant variant, const MlaShape& shape, size_t batch,
               size_t context, kernels::Dtype cache, kernels::Dtype weights);

// The layer with random weights and caches, equal in every variant. Rope keys
// are cached as if already rotated, and so are the queries' rope parts:
// rotation costs the same in all forms.
class MlaModule {
 public:
  // `cache` and `weights` are kF32 or kBf16.
  MlaModule(MlaVariant variant, const MlaShape& shape, size_t batch,
            size_t context, kernels::Dtype cache, kernels::Dtype weights,
            kernels::ThreadPool& pool);

  // From q latents after their norm [batch, q_rank] to out [batch, hidden].
  void Run(const float* q_latent, float* out);

 private:
  void MakeWeights(kernels::Dtype weights);
  void MakeCaches();
  void Multiply(const kernels::WeightMatrix& w, const float* x, float* y);
  // The first sequence's block in float32.
  const float* Latents(size_t block);
  void WriteHeads(size_t sequence, size_t position, const float* expanded,
                  const float* rope);
  void ExpandCache();
  void ExpandNewest();
  // One query for every row of keys [rows, context, key_dim] and values, which
  // are value_stride elements apart.
  void AttendHeads(const char* keys, const char* values, size_t key_dim,
                   size_t value_dim, size_t value_stride, size_t rows,
                   const float* q, float* out);
  void AttendCopies();

  const MlaVariant variant_;
  const MlaShape shape_;
  const size_t batch_;
  const size_t context_;
  const kernels::LatentRowFormat format_;
  kernels::ThreadPool& pool_;
  kernels::WeightMatrix q_b_;            // [heads * key, q_rank]
  kernels::WeightMatrix kv_b_;           // [heads * expanded, rank]
  kernels::WeightMatrix uk_transposed_;  // [heads * rank, nope]
  kernels::WeightMatrix o_;              // [hidden, heads * v]
  kernels::WeightMatrix q_absorbed_;     // [heads * rank, q_rank]
  kernels::WeightMatrix q_rope_;         // [heads * rope, q_rank]
  kernels::WeightMatrix o_absorbed_;     // [hidden, heads * rank]
  std::vector<kernels::AlignedBuffer> blocks_;
  std::vector<std::vector<const char*>> block_pointers_;  // By sequence.
  std::vector<kernels::MlaSpan> spans_;
  kernels::AlignedBuffer keys_;    // CD: [batch, heads, context, key]
  kernels::AlignedBuffer values_;  // CD: [batch, heads, context, v]
  kernels::AlignedBuffer copies_;  // A_CC: [heads, context, cached]
  kernels::MlaWorkspace workspace_;
  kernels::Activations x_;
  std::vector<float> q_;         // [batch, heads, key]
  std::vector<float> latent_q_;  // [batch, heads, cached]
  std::vector<float> sums_;      // [batch, heads, rank]
  std::vector<float> attended_;  // [batch, heads, v]
  std::vector<float> rope_;      // AM_CC_ME: [batch, heads, rope]
  std::vector<float> latents_;   // CD: of a block.
  std::vector<float> newest_;    // CD: [batch, rank]
  std::vector<float> expanded_;  // CD: [batch, heads * expanded]
};

}  // namespace ringfleet::perf

#endif  // RINGFLEET_PERF_MLA_VARIANTS_H_
