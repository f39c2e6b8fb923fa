// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/model_inspection.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/model/stored_tensor.h"
#include "cluster/model/unread_tensors.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

uint64_t ElementsOf(const TensorInfo& info) {
  uint64_t elements = 1;
  for (const int64_t size : info.shape) elements *= size;
  return elements;
}

class Inspector {
 public:
  Inspector(const ModelSpec& spec, const TensorSource& source)
      : spec_(spec), source_(source) {}

  ModelInspection Inspect() {
    const std::vector<std::string> names = source_.Names();
    for (const TensorGroup& group : AllTensors(spec_)) {
      if (group.layer >= spec_.num_hidden_layers) {
        if (!HasAny(names, group.prefix)) continue;
        result_.has_mtp = true;
      }
      Expect(group);
    }
    for (const std::string& name : names) Tally(name);
    // Only the first of several multi-token prediction layers is loaded.
    for (const std::string& name : FindUnreadTensors(
             spec_, source_,
             spec_.num_hidden_layers + (result_.has_mtp ? 1 : 0))) {
      Wrong(name, absl::StrCat("nothing reads this tensor",
                               UnsupportedTechnique(name)));
    }
    std::sort(result_.missing.begin(), result_.missing.end());
    std::sort(result_.wrong.begin(), result_.wrong.end());
    return std::move(result_);
  }

 private:
  // `names` are sorted.
  static bool HasAny(const std::vector<std::string>& names,
                     const std::string& prefix) {
    const auto it = std::lower_bound(names.begin(), names.end(), prefix);
    return it != names.end() && absl::StartsWith(*it, prefix);
  }

  void Expect(const TensorGroup& group) {
    for (const auto& [tensor, expert] :
         InOrder(group, spec_.n_routed_experts)) {
      if (tensor->is_tied) continue;
      ExpectOne(SliceOf(source_, spec_, group, *tensor, expert, LocalSlice()),
                *tensor);
    }
  }

  void Wrong(const std::string& name, absl::string_view problem) {
    result_.wrong.push_back(absl::StrCat(name, ": ", problem));
  }

  // Counts a tensor of the checkpoint to a class, and says it is known.
  // `parameters` is the number of values that it holds.
  void Claim(const std::string& name, const TensorInfo& info,
             const ModelTensor& tensor, uint64_t parameters) {
    if (!known_.insert(name).second) return;
    TensorTally& tally =
        result_.classes[static_cast<size_t>(tensor.weight_class)];
    ++tally.tensors;
    tally.bytes += info.bytes;
    tally.parameters += parameters;
  }

  void ExpectOne(const TensorSlice& slice, const ModelTensor& tensor) {
    // One tensor of all experts is expected once.
    if (known_.contains(slice.name)) return;
    StoredTensor stored;
    const absl::Status status = FindStored(source_, slice, &stored);
    uint64_t parameters = 1;
    for (const int64_t size : slice.shape) parameters *= size;
    for (const auto& [name, info] : stored.found) {
      Claim(name, *info, tensor, info == stored.values ? parameters : 0);
    }
    if (status.ok()) return;
    if (!stored.missing.empty()) {
      if (tensor.memory != MemoryForm::kNotLoaded) {
        result_.missing.push_back(stored.missing);
      }
      return;
    }
    // A tensor of an unknown type is not found, but there.
    if (stored.values == nullptr) known_.insert(slice.name);
    // Most errors begin with the name of the tensor.
    const absl::string_view problem = status.message();
    if (absl::StartsWith(problem, slice.name)) {
      result_.wrong.emplace_back(problem);
    } else {
      Wrong(slice.name, problem);
    }
  }

  // By dtype and file, and among the unexpected if nothing asked for it.
  void Tally(const std::string& name) {
    const bool known = known_.contains(name);
    const std::string reason(known ? "" : SkipReason(spec_, name));
    if (!known) result_.unexpected.push_back(name);
    const absl::StatusOr<const TensorInfo*> info = source_.Find(name);
    if (!info.ok()) {
      ++result_.dtypes["unsupported"].tensors;
      if (!known) ++result_.unexpected_tally.tensors;
      if (!reason.empty()) ++result_.skipped[reason].tensors;
      return;
    }
    const auto add = [&info](TensorTally& tally) {
      ++tally.tensors;
      tally.parameters += ElementsOf(**info);
      tally.bytes += (*info)->bytes;
    };
    add(result_.dtypes[std::string(kernels::DtypeName((*info)->dtype))]);
    add(result_.files[source_.FileName(**info)]);
    if (!known) add(result_.unexpected_tally);
    if (!reason.empty()) add(result_.skipped[reason]);
  }

  const ModelSpec& spec_;
  const TensorSource& source_;
  absl::flat_hash_set<std::string> known_;
  ModelInspection result_;
};

}  // namespace

ModelInspection InspectModel(const ModelSpec& spec,
                             const TensorSource& source) {
  return Inspector(spec, source).Inspect();
}

}  // namespace ringfleet::cluster
