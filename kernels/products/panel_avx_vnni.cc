// SPDX-License-Identifier: Apache-2.0
// AVX-VNNI: what processors without AVX-512 have (Alder Lake and Sierra Forest
// onwards). Its encoding differs from AVX-512's of the same instruction.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "hwy/base.h"
#include "kernels/products/panel.h"

#if defined(__x86_64__)

HWY_PUSH_ATTRIBUTES("avx2,fma")
#define RF_VPDPBUSD "%{vex%} vpdpbusd"
#include "kernels/products/panel_vnni256-inl.h"

namespace ringfleet::kernels {

IntegerPanelKernels AvxVnniPanelKernels() { return Vnni256PanelKernels(); }

}  // namespace ringfleet::kernels
HWY_POP_ATTRIBUTES

#endif  // defined(__x86_64__)
