// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_WIDEN_H_
#define RINGFLEET_KERNELS_WIDEN_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace ringfleet::kernels {

// destination[i] = source[i] * scale, as float32: ToFloat and one rounded
// multiplication, the same bits on every instruction set. Returns true if every
// magnitude is at most `limit`; a NaN's is not. `source` has any alignment.
bool WidenScaled(Dtype dtype, const void* source, size_t count, float scale,
                 float limit, float* destination);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_WIDEN_H_
