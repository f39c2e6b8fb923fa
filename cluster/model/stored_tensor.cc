// SPDX-License-Identifier: Apache-2.0
#include "cluster/model/stored_tensor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

using kernels::CodeForm;
using kernels::Dtype;
using Shape = std::vector<int64_t>;

constexpr int kCodesPerInt32 = 8;

std::string TensorShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kBf16 || dtype == Dtype::kF16;
}

// Finds the tensors that hold a slice.
class StoredFinder {
 public:
  StoredFinder(const TensorSource& source, const TensorSlice& slice,
               StoredTensor* stored)
      : source_(source), slice_(slice), stored_(*stored) {}

  absl::Status Find() {
    if (slice_.method == QuantMethod::kInt4) return FindInt4();
    RF_RETURN_IF_ERROR(FindOne(slice_.name, "", &stored_.values));
    RF_RETURN_IF_ERROR(FindScales());
    RF_RETURN_IF_ERROR(CheckShape(*stored_.values, slice_.shape));
    return stored_.scales == nullptr ? absl::OkStatus() : CheckGrid();
  }

 private:
  absl::Status FindOne(const std::string& name, absl::string_view what,
                       const TensorInfo** found) {
    const absl::StatusOr<const TensorInfo*> info = source_.Find(name);
    if (absl::IsNotFound(info.status())) {
      stored_.missing = name;
      return absl::DataLossError(absl::StrCat("missing tensor ", name, what));
    }
    // An encoding that cannot be read.
    if (!info.ok()) return absl::DataLossError(info.status().message());
    *found = *info;
    stored_.found.emplace_back(name, *info);
    return absl::OkStatus();
  }

  static absl::Status CheckShape(const TensorInfo& info, const Shape& want) {
    if (info.shape == want) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(info.name, ": shape ",
                                            TensorShapeText(info.shape),
                                            ", want ", TensorShapeText(want)));
  }

  static absl::Status CheckType(const TensorInfo& info,
                                const std::vector<Dtype>& want,
                                absl::string_view reason = "") {
    if (std::find(want.begin(), want.end(), info.dtype) != want.end()) {
      return absl::OkStatus();
    }
    std::string names;
    for (size_t i = 0; i < want.size(); ++i) {
      absl::StrAppend(&names,
                      i == 0                ? ""
                      : i + 1 < want.size() ? ", "
                                            : " or ",
                      kernels::DtypeName(want[i]));
    }
    return absl::DataLossError(absl::StrCat(info.name, ": dtype ",
                                            kernels::DtypeName(info.dtype),
                                            ", want ", names, reason));
  }

  // The first of `dtypes` and `shapes` are named in the message.
  absl::Status CheckScales(const std::vector<Dtype>& dtypes,
                           const std::vector<Shape>& shapes) const {
    const TensorInfo& info = *stored_.scales;
    const auto has = [](const auto& list, const auto& value) {
      return std::find(list.begin(), list.end(), value) != list.end();
    };
    if (has(dtypes, info.dtype) && has(shapes, info.shape)) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat(info.name, ": ", kernels::DtypeName(info.dtype), " ",
                     TensorShapeText(info.shape), ", want ",
                     kernels::DtypeName(dtypes.front()), " ",
                     TensorShapeText(shapes.front())));
  }

  absl::Status FindInt4() {
    RF_CHECK(slice_.shape.size() == 2);
    const int64_t rows = slice_.shape[0];
    const int64_t columns = slice_.shape[1];
    RF_RETURN_IF_ERROR(FindOne(absl::StrCat(slice_.name, "_packed"),
                               ", the codes of an int4 weight",
                               &stored_.values));
    RF_RETURN_IF_ERROR(FindOne(absl::StrCat(slice_.name, "_scale"),
                               ", the scales of an int4 weight",
                               &stored_.scales));
    RF_RETURN_IF_ERROR(FindOne(absl::StrCat(slice_.name, "_shape"),
                               ", the shape of an int4 weight",
                               &stored_.shape));
    stored_.code_form = CodeForm::kInt4;
    SetBlocks(1, kInt4GroupSize);
    RF_RETURN_IF_ERROR(CheckType(*stored_.values, {Dtype::kInt32}));
    RF_RETURN_IF_ERROR(CheckShape(*stored_.values,
                                  {rows, CeilDivide(columns, kCodesPerInt32)}));
    RF_RETURN_IF_ERROR(
        CheckScales({Dtype::kBf16}, {{rows, stored_.scale_columns}}));
    RF_RETURN_IF_ERROR(
        CheckType(*stored_.shape, {Dtype::kInt32, Dtype::kInt64}));
    return CheckShape(*stored_.shape, {2});
  }

  void SetBlocks(int64_t rows, int64_t columns) {
    stored_.block_rows = rows;
    stored_.block_columns = columns;
    stored_.scale_columns = CeilDivide(slice_.shape.back(), columns);
  }

  // Finds the scales of codes, if the values are codes.
  absl::Status FindScales() {
    const TensorInfo& values = *stored_.values;
    if (IsFloat(values.dtype)) return absl::OkStatus();
    std::vector<Dtype> types = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
    const bool fp8 = slice_.method == QuantMethod::kFp8;
    if (slice_.method != QuantMethod::kNone) {
      types.push_back(fp8 ? Dtype::kF8E4M3 : Dtype::kInt8);
    }
    RF_RETURN_IF_ERROR(CheckType(
        values, types,
        slice_.method == QuantMethod::kNone
            ? " (config.json has no quantization_config for this tensor)"
            : ""));
    stored_.code_form = fp8 ? CodeForm::kF8E4M3 : CodeForm::kInt8;
    std::string name = absl::StrCat(slice_.name, "_scale_inv");
    std::string other = absl::StrCat(slice_.name, "_scale");
    if (slice_.method == QuantMethod::kInt8Channel ||
        (fp8 && !source_.Contains(name) && source_.Contains(other))) {
      name = std::move(other);
    }
    return FindOne(name,
                   fp8 ? ", the scales of an f8_e4m3 weight"
                       : ", the scales of an int8 weight",
                   &stored_.scales);
  }

  absl::Status CheckGrid() {
    const bool stacked = slice_.shape.size() == 3;
    const int64_t rows = slice_.shape[slice_.shape.size() - 2];
    const int64_t columns = slice_.shape.back();
    const auto of_all = [&](int64_t scale_rows, int64_t scale_columns) {
      return stacked ? Shape{slice_.shape[0], scale_rows, scale_columns}
                     : Shape{scale_rows, scale_columns};
    };
    if (slice_.method == QuantMethod::kInt8Channel) {
      SetBlocks(1, columns);
      return CheckScales({Dtype::kF32}, {of_all(rows, 1)});
    }
    if (slice_.block_rows == 0) {
      SetBlocks(rows, columns);
      return CheckScales({Dtype::kF32, Dtype::kBf16, Dtype::kF8E8M0},
                         stacked ? std::vector<Shape>{of_all(1, 1)}
                                 : std::vector<Shape>{{}, {1}, {1, 1}});
    }
    if (stacked && rows % slice_.block_rows != 0) {
      return absl::DataLossError(absl::StrCat(
          slice_.name, ": ", rows, " rows of each expert, want a multiple of ",
          slice_.block_rows, ", the rows of weight_block_size"));
    }
    SetBlocks(slice_.block_rows, slice_.block_columns);
    return CheckScales(
        {Dtype::kF32, Dtype::kF8E8M0},
        {of_all(CeilDivide(rows, slice_.block_rows), stored_.scale_columns)});
  }

  const TensorSource& source_;
  const TensorSlice& slice_;
  StoredTensor& stored_;
};

// Returns the encoding that config.json gives to a tensor.
QuantMethod MethodOf(const ModelSpec& spec, const ModelTensor& tensor) {
  if (!tensor.may_be_quantized()) return QuantMethod::kNone;
  const QuantMethod method = spec.quantization.method;
  return method == QuantMethod::kInt4 && !tensor.is_int4 ? QuantMethod::kNone
                                                         : method;
}

}  // namespace

absl::Status FindStored(const TensorSource& source, const TensorSlice& slice,
                        StoredTensor* stored) {
  return StoredFinder(source, slice, stored).Find();
}

TensorSlice SliceOf(const TensorSource& source, const ModelSpec& spec,
                    const TensorGroup& group, const ModelTensor& tensor,
                    int expert, const LocalSlice& local) {
  TensorSlice slice = {.name = TensorName(group.prefix, tensor, expert),
                       .shape = tensor.shape(),
                       .rows = local.rows,
                       .columns = local.columns,
                       .method = MethodOf(spec, tensor),
                       .block_rows = spec.weight_block_rows,
                       .block_columns = spec.weight_block_columns};
  if (!tensor.each_expert() || slice.method == QuantMethod::kInt4 ||
      source.Contains(slice.name)) {
    return slice;
  }
  std::string stack = absl::StrCat(group.prefix, StackedName(tensor));
  if (!source.Contains(stack)) return slice;
  const bool gate_and_up = tensor.role != TensorRole::kExpertDown;
  const int64_t rows = gate_and_up ? 2 * tensor.rows : tensor.rows;
  const int64_t first =
      expert * rows + (tensor.role == TensorRole::kExpertUp ? tensor.rows : 0);
  slice.name = std::move(stack);
  slice.shape = {spec.n_routed_experts, rows, tensor.columns};
  slice.rows.begin += static_cast<int>(first);
  slice.rows.end += static_cast<int>(first);
  return slice;
}

bool IsStored(const TensorSource& source, const ModelSpec& spec,
              const TensorGroup& group, const ModelTensor& tensor, int expert,
              absl::string_view name) {
  StoredTensor stored;
  const TensorSlice slice =
      SliceOf(source, spec, group, tensor, expert, LocalSlice());
  if (!FindStored(source, slice, &stored).ok() && stored.scales == nullptr &&
      (stored.values == nullptr || !IsFloat(stored.values->dtype))) {
    return true;
  }
  return std::any_of(stored.found.begin(), stored.found.end(),
                     [&](const auto& found) { return found.first == name; });
}

bool ConsumeStoredSuffix(absl::string_view* name) {
  for (const absl::string_view suffix :
       {"_scale_inv", "_scale", "_packed", "_shape"}) {
    if (absl::ConsumeSuffix(name, suffix)) return true;
  }
  return false;
}

absl::string_view StackedName(const ModelTensor& tensor) {
  return tensor.role == TensorRole::kExpertDown ? "mlp.experts.down_proj"
                                                : "mlp.experts.gate_up_proj";
}

}  // namespace ringfleet::cluster
