// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_
#define RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace ringfleet::cluster {

// A tensor of a checkpoint: how its values are encoded, its shape, and where
// its bytes lie.
struct TensorInfo {
  std::string name;
  kernels::Dtype dtype;
  std::vector<int64_t> shape;
  int file = 0;         // Index into the checkpoint's files.
  uint64_t offset = 0;  // From the start of the file.
  uint64_t bytes = 0;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_TENSOR_SOURCE_H_
