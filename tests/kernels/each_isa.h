// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_KERNELS_EACH_ISA_H_
#define RINGFLEET_TESTS_KERNELS_EACH_ISA_H_

#include "gtest/gtest.h"
#include "kernels/isa.h"

namespace ringfleet::kernels {

// Calls `body` with every instruction set of this host forced in turn.
template <typename Body>
void ForEachIsa(const Body& body) {
  const Isa before = CurrentIsa();
  for (const Isa isa : SupportedIsas()) {
    SCOPED_TRACE(::testing::Message() << "on " << IsaName(isa));
    ForceIsa(isa);
    body();
  }
  ForceIsa(before);
}

}  // namespace ringfleet::kernels

#endif  // RINGFLEET_TESTS_KERNELS_EACH_ISA_H_
