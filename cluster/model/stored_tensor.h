// SPDX-License-Identifier: Apache-2.0
// Finds the tensors of a checkpoint that hold one tensor of the model: its
// values, or its codes and their scales. Reads headers only.
#ifndef RINGFLEET_CLUSTER_MODEL_STORED_TENSOR_H_
#define RINGFLEET_CLUSTER_MODEL_STORED_TENSOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/shard_plan.h"
#include "cluster/model/tensor_source.h"
#include "kernels/products/code_row.h"

namespace ringfleet::cluster {

// The tensors that hold a tensor NAME. Names of published files:
//   fp8            NAME [o, i], NAME_scale_inv (or NAME_scale) for blocks
//                  [o / block, i / block], for the tensor [] or [1], for each
//                  expert [experts, 1, 1]
//   int4           NAME_packed int32 [o, i / 8], NAME_scale bf16 [o, i / 32],
//                  NAME_shape int32 or int64 [2]
//   int8 channel   NAME int8 [o, i], NAME_scale f32 [o, 1]
//   int8 blocks    NAME int8 [o, i], NAME_scale_inv f32 for blocks
// An expert's row is a row of all experts' rows in one matrix.
struct StoredTensor {
  const TensorInfo* values = nullptr;          // Floats or codes.
  std::optional<kernels::CodeForm> code_form;  // Unset: floats.
  const TensorInfo* scales = nullptr;          // Scales of codes, row-major.
  int64_t scale_columns = 0;                   // Columns of `scales`.
  // Rows and columns of codes that share a scale.
  int64_t block_rows = 1;
  int64_t block_columns = 1;
  const TensorInfo* shape = nullptr;  // Numbers o and i of int4.
  // The tensors that are found, by the name that TensorSource::Find took:
  // `values` first.
  std::vector<std::pair<std::string, const TensorInfo*>> found;
  // Name of the first tensor that is missing; "": none is.
  std::string missing;
};

// Finds the tensors of `slice`, which must have the slice's shape and encoding.
// Fills in `stored` as far as they are found.
//
// Errors: DATA_LOSS: a tensor is missing, or its shape or its type is wrong:
// names the tensor, the value and the expected value.
absl::Status FindStored(const TensorSource& source, const TensorSlice& slice,
                        StoredTensor* stored);

// Returns the part `local` of a tensor of the table as a slice of the
// checkpoint's tensor. `expert` is ignored unless each expert has a tensor. If
// the checkpoint has the experts of a layer in one tensor
// ("experts.gate_up_proj" [experts, 2 * rows, columns] with the rows of gate
// first, "experts.down_proj"), the slice is a part of that tensor.
TensorSlice SliceOf(const TensorSource& source, const ModelSpec& spec,
                    const TensorGroup& group, const ModelTensor& tensor,
                    int expert, const LocalSlice& local);

// Returns true if `name` is a tensor that SliceOf and FindStored take for the
// tensor `tensor` of the table, or for expert `expert` of it. Returns true for
// any such name if a tensor is missing or wrong, which is an error of its own.
bool IsStored(const TensorSource& source, const ModelSpec& spec,
              const TensorGroup& group, const ModelTensor& tensor, int expert,
              absl::string_view name);

// Removes the suffix that turns a tensor's name into that of its codes, scales
// or shape in any encoding. Returns false if the name has none.
bool ConsumeStoredSuffix(absl::string_view* name);

// Returns the name of the tensor that has the experts of a layer, as in
// "mlp.experts.down_proj", for a tensor that each expert has.
absl::string_view StackedName(const ModelTensor& tensor);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_MODEL_STORED_TENSOR_H_
