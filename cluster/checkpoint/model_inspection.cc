// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/model_inspection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cluster/model/unread_tensors.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;

uint64_t ElementsOf(const TensorInfo& info) {
  uint64_t elements = 1;
  for (const int64_t size : info.shape) elements *= size;
  return elements;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
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
      ExpectOne(TensorName(group.prefix, *tensor, expert), *tensor);
    }
  }

  void Wrong(const std::string& name, absl::string_view problem) {
    result_.wrong.push_back(absl::StrCat(name, ": ", problem));
  }

  // Counts a tensor of the checkpoint to a class, and says it is known. Null
  // when it is missing, or cannot be read, which is then noted.
  const TensorInfo* Claim(const std::string& name, const ModelTensor& tensor,
                          bool is_scale) {
    const absl::StatusOr<const TensorInfo*> info = source_.Find(name);
    if (absl::IsNotFound(info.status())) {
      if (tensor.memory != MemoryForm::kNotLoaded) {
        result_.missing.push_back(name);
      }
      return nullptr;
    }
    known_.insert(name);
    if (!info.ok()) {
      // Most errors of a tensor begin with its name.
      Wrong(name, absl::StripPrefix(info.status().message(),
                                    absl::StrCat(name, ": ")));
      return nullptr;
    }
    TensorTally& tally =
        result_.classes[static_cast<size_t>(tensor.weight_class)];
    ++tally.tensors;
    tally.bytes += (*info)->bytes;
    if (!is_scale) tally.parameters += ElementsOf(**info);
    return *info;
  }

  void ExpectOne(const std::string& name, const ModelTensor& tensor) {
    const TensorInfo* info = Claim(name, tensor, /*is_scale=*/false);
    if (info == nullptr) return;
    const std::vector<int64_t> want = tensor.shape();
    if (info->shape != want) {
      Wrong(name, absl::StrCat("shape ", ShapeText(info->shape), ", want ",
                               ShapeText(want)));
      return;
    }
    if (info->dtype == Dtype::kInt8) {
      Wrong(name, "dtype int8, want f32, bf16, f16 or f8_e4m3");
    }
    if (info->dtype != Dtype::kF8E4M3) return;
    if (!tensor.may_be_fp8()) {
      Wrong(name, "dtype f8_e4m3, want f32, bf16 or f16");
    } else if (spec_.weight_block_rows == 0) {
      Wrong(name, "dtype f8_e4m3, but config.json has no quantization_config");
    } else {
      ExpectScales(absl::StrCat(name, "_scale_inv"), tensor);
    }
  }

  void ExpectScales(const std::string& name, const ModelTensor& tensor) {
    const TensorInfo* info = Claim(name, tensor, /*is_scale=*/true);
    if (info == nullptr) return;
    const std::vector<int64_t> want = {
        CeilDivide(tensor.rows, spec_.weight_block_rows),
        CeilDivide(tensor.columns, spec_.weight_block_columns)};
    if (info->dtype != Dtype::kF32 || info->shape != want) {
      Wrong(name, absl::StrCat(kernels::DtypeName(info->dtype), " ",
                               ShapeText(info->shape), ", want f32 ",
                               ShapeText(want)));
    }
  }

  // By dtype and file, and among the unexpected if nothing asked for it.
  void Tally(const std::string& name) {
    const bool known = known_.contains(name);
    if (!known) result_.unexpected.push_back(name);
    const absl::StatusOr<const TensorInfo*> info = source_.Find(name);
    if (!info.ok()) {
      ++result_.dtypes["unsupported"].tensors;
      if (!known) ++result_.unexpected_tally.tensors;
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
