// SPDX-License-Identifier: Apache-2.0
#include "kernels/xxh3.h"

// Half a page: the processor's own reading ahead ends with a page.
#define XXH_PREFETCH_DIST 2048
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ringfleet::kernels {

uint64_t Xxh3(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace ringfleet::kernels
