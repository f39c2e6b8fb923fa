// SPDX-License-Identifier: Apache-2.0
// Encodes the weights of a test's checkpoint as quantised checkpoints have
// them.
#ifndef RINGFLEET_TESTS_TESTING_QUANTIZED_TENSORS_H_
#define RINGFLEET_TESTS_TESTING_QUANTIZED_TENSORS_H_

#include <cstdint>
#include <vector>

#include "cluster/model/model_spec.h"
#include "kernels/dtype.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::testing {

// A checkpoint twice: quantised, and with the values that the codes stand for
// in float32.
struct QuantizedTensors {
  std::vector<TestTensor> stored;
  std::vector<TestTensor> plain;
};

struct QuantizedForm {
  // Type of the scales; ignored by int4, whose scales are bf16.
  kernels::Dtype scales = kernels::Dtype::kF32;
  // True: the experts of a layer are one tensor.
  bool stacked = false;
};

// Returns random weights of `spec`, products in the encoding of
// spec.quantization, or bf16 if that is kNone.
QuantizedTensors MakeQuantized(const cluster::ModelSpec& spec,
                               const QuantizedForm& form, uint64_t seed);

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_QUANTIZED_TENSORS_H_
