// SPDX-License-Identifier: Apache-2.0
#include "kernels/check.h"

#include <cstdio>
#include <cstdlib>

namespace ringfleet::kernels {

void CheckFailed(const char* file, int line, const char* text) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, text);
  std::abort();
}

}  // namespace ringfleet::kernels
