// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_ROW_CODEC_H_
#define RINGFLEET_WORKER_ROW_CODEC_H_

#include <cstddef>

#include "cluster/wire_format.h"
#include "kernels/activations.h"

namespace ringfleet::worker {

// How a row of activations travels to ranks that multiply it: for integer
// weights the codes and scales that the products read, a byte and a sixteenth
// for each element, which loses nothing that the products would not lose
// anyway; for float weights as a row of the wire's format. Behind them come
// `attached` float32 numbers that no product reads, in the wire's format.
// Immutable; allocates nothing.
class RowCodec {
 public:
  RowCodec(kernels::Activations::Form form, size_t columns, size_t attached,
           cluster::Wire wire);

  size_t row_bytes() const { return product_bytes_ + attached_bytes_; }

  // Writes row_bytes() of row `row` of x. Form kF32: `values` [columns] are the
  // same row. `attached` [attached].
  void Encode(const kernels::Activations& x, size_t row, const float* values,
              const float* attached, char* out) const;
  // Form kF32 fills in `values`, kInt8 row `row` of x.
  void Decode(const char* bytes, kernels::Activations& x, size_t row,
              float* values, float* attached) const;

 private:
  const kernels::Activations::Form form_;
  const size_t columns_;
  const size_t attached_;
  const cluster::WireFormat values_format_;
  const cluster::WireFormat attached_format_;
  const size_t product_bytes_;
  const size_t attached_bytes_;
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_ROW_CODEC_H_
