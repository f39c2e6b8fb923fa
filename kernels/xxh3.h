// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_XXH3_H_
#define RINGFLEET_KERNELS_XXH3_H_

#include <cstddef>
#include <cstdint>

namespace ringfleet::kernels {

// XXH3_64bits of xxHash without a seed, compiled here to read ahead further
// than the library does, since what is hashed comes from memory.
uint64_t Xxh3(const void* data, size_t bytes);

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_KERNELS_XXH3_H_
