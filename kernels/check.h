// SPDX-License-Identifier: Apache-2.0
// RF_CHECK guards invariants of this program: its condition fails only through
// a defect of the program. Input from files, users and peers returns a status.
#ifndef RINGFLEET_KERNELS_CHECK_H_
#define RINGFLEET_KERNELS_CHECK_H_

namespace ringfleet::kernels {

// Prints "file:line: check failed: text" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* text);

}  // namespace ringfleet::kernels

#define RF_CHECK(condition)                                              \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::ringfleet::kernels::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                    \
  } while (false)

#endif  // RINGFLEET_KERNELS_CHECK_H_
