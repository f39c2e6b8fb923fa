// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_ATTENTION_MLA_WORKSPACE_H_
#define RINGFLEET_KERNELS_ATTENTION_MLA_WORKSPACE_H_

#include <cstddef>
#include <vector>

#include "kernels/aligned_buffer.h"
#include "kernels/products/activations.h"

namespace ringfleet::kernels {

struct MlaSpan;
struct MlaDecodeTask;

// Memory of attention that one call leaves to the next. It grows to the largest
// call; later calls allocate nothing. Serves one call at a time.
struct MlaWorkspace {
  MlaWorkspace();
  ~MlaWorkspace();

  AlignedBuffer threads;     // Scratch of every thread.
  Activations x;             // Rows that weights multiply.
  AlignedBuffer queries;     // Absorbed: queries in the latent space.
  AlignedBuffer sums;        // Absorbed: weighted sums of latents.
  AlignedBuffer partials;    // Absorbed: results of parts of long contexts.
  AlignedBuffer latents;     // Materialised: latents of some blocks, widened.
  AlignedBuffer expanded;    // Materialised: keys and values of these.
  AlignedBuffer statistics;  // Materialised: maximum and sum of every query.
  std::vector<MlaSpan> spans;
  std::vector<MlaDecodeTask> tasks;
};

// Returns `buffer` with room for `count` elements. Its contents are lost.
template <typename T>
T* GrowTo(AlignedBuffer& buffer, size_t count) {
  if (buffer.size() < count * sizeof(T)) {
    buffer = AlignedBuffer();
    buffer = AlignedBuffer(count * sizeof(T));
  }
  return reinterpret_cast<T*>(buffer.data());
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_ATTENTION_MLA_WORKSPACE_H_
