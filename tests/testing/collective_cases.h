// SPDX-License-Identifier: Apache-2.0
// Inputs and expected results for tests of collectives.
#ifndef RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_
#define RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cluster/collectives/communicator.h"

namespace ringfleet::testing {

// Returns the input of one rank. Signs and magnitudes vary, so a sum in another
// order has other last bits.
std::vector<float> RankValues(int rank, size_t count);

// Rounds values to a wire in plain loops. int8 has a scale for every 128
// elements, counted from the start of each row.
void RoundToWire(cluster::Wire wire, size_t row_elements,
                 std::vector<float>& values);

// Returns the result of a direct reduce-scatter: the inputs of all ranks,
// rounded to the wire and added in rank order in float32.
std::vector<float> RankOrderPartialSum(int ranks, size_t count,
                                       cluster::Wire wire,
                                       size_t row_elements = 0);

// Returns the result of a one-shot or a two-shot all-reduce:
// RankOrderPartialSum, rounded to the wire.
std::vector<float> RankOrderSum(int ranks, size_t count, cluster::Wire wire,
                                size_t row_elements = 0);

// Returns the sum in float32 around a ring of `ranks` ranks that ends at rank
// `owner`. To the right, the order is owner + 1, owner + 2, ..., owner. To the
// left, the order is owner - 1, owner - 2, ..., owner.
std::vector<float> RingOrderSum(int ranks, int owner, bool to_the_right,
                                size_t count);

// Returns the offsets of uneven shares of `count` elements, one for each rank.
// Some shares are empty. Offsets are multiples of `unit`.
std::vector<uint64_t> UnevenOffsets(int ranks, size_t count, size_t unit = 1);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_
