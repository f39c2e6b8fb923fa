// SPDX-License-Identifier: Apache-2.0
// Inputs and plain references for tests of collectives.
#ifndef RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_
#define RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cluster/collectives/communicator.h"

namespace ringfleet::testing {

// Values of one rank: signs and magnitudes vary, so that the order of a sum
// shows in its last bits.
std::vector<float> RankValues(int rank, size_t count);

// Values as they arrive over a wire, computed plainly: int8 has a scale for
// every 128 elements from the start of each row.
void RoundToWire(cluster::Wire wire, size_t row_elements,
                 std::vector<float>& values);

// The sum of partials rounded to the wire, in rank order in float32: what a
// direct reduce-scatter returns.
std::vector<float> RankOrderPartialSum(int ranks, size_t count,
                                       cluster::Wire wire,
                                       size_t row_elements = 0);

// What a one-shot and a two-shot all-reduce return: that sum, rounded again.
std::vector<float> RankOrderSum(int ranks, size_t count, cluster::Wire wire,
                                size_t row_elements = 0);

// What walking around a ring of `ranks` adds up to in float32, at the rank
// `owner` where the walk ends: to the right owner + 1, owner + 2, ..., owner.
std::vector<float> RingOrderSum(int ranks, int owner, bool to_the_right,
                                size_t count);

// Uneven shares of `count` elements, some of them empty, their borders at
// multiples of `unit`.
std::vector<uint64_t> UnevenOffsets(int ranks, size_t count, size_t unit = 1);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_COLLECTIVE_CASES_H_
