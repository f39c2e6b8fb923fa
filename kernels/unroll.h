// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_KERNELS_UNROLL_H_
#define RINGFLEET_KERNELS_UNROLL_H_

// RF_UNROLL stands before a loop over an array of vectors. The loop has a
// constant number of steps, at most 16. Once it is unrolled, the array lies in
// registers.
#ifdef __clang__
#define RF_UNROLL _Pragma("unroll")
#else
#define RF_UNROLL _Pragma("GCC unroll 16")
#endif

#endif  // RINGFLEET_KERNELS_UNROLL_H_
