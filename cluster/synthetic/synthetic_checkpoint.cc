// SPDX-License-Identifier: Apache-2.0
#include "cluster/synthetic/synthetic_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

using kernels::Dtype;

// A file ends before the tensor that would carry it beyond this, or beyond a
// quarter of all bytes: small checkpoints are split, too, as large ones are.
constexpr uint64_t kMaxFileBytes = 1 << 30;

absl::string_view DtypeText(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "F32";
    case Dtype::kBf16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
    case Dtype::kF8E4M3:
      return "F8_E4M3";
    case Dtype::kInt8:
    case Dtype::kF8E8M0:
    case Dtype::kInt32:
    case Dtype::kInt64:
      break;  // No synthetic tensor has it.
  }
  RF_CHECK(false);
}

uint64_t Elements(const SyntheticTensor& tensor) {
  uint64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;
  return count;
}

uint64_t Bytes(const SyntheticTensor& tensor) {
  return Elements(tensor) * kernels::DtypeBytes(tensor.dtype);
}

// The length of a header, the header, and spaces up to a multiple of 8, so that
// the data are aligned.
std::string WithLength(std::string header) {
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length;
  for (int i = 0; i < 8; ++i) {
    length.push_back(static_cast<char>(header.size() >> (8 * i)));
  }
  return length + header;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SyntheticCheckpoint>> SyntheticCheckpoint::Open(
    const std::string& model) {
  RF_ASSIGN_OR_RETURN(const SyntheticModel parsed, ParseSyntheticModel(model));
  RF_ASSIGN_OR_RETURN(const std::string config,
                      SyntheticFile(parsed, "config.json"));
  RF_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(config));
  std::unique_ptr<SyntheticCheckpoint> checkpoint(
      new SyntheticCheckpoint(parsed, spec));
  checkpoint->contents_.config = config;
  return checkpoint;
}

SyntheticCheckpoint::SyntheticCheckpoint(const SyntheticModel& model,
                                         const ModelSpec& spec)
    : model_(model),
      generator_(spec, SyntheticTensors(spec), model.seed, model.zipf) {
  contents_.model = FormatSyntheticModel(model);
  for (const SyntheticTensor& tensor : generator_.tensors()) {
    if (tensor.values != SyntheticTensor::Values::kScale) {
      parameters_ += Elements(tensor);
    }
  }
  PlaceTensors();
  MakeIndex();
}

void SyntheticCheckpoint::PlaceTensors() {
  const std::vector<SyntheticTensor>& tensors = generator_.tensors();
  uint64_t total = 0;
  for (const SyntheticTensor& tensor : tensors) total += Bytes(tensor);
  const uint64_t limit = std::min(kMaxFileBytes, total / 4);
  std::vector<std::vector<size_t>> files;
  uint64_t bytes = limit;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (files.empty() || bytes + Bytes(tensors[i]) > limit) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += Bytes(tensors[i]);
  }
  for (std::vector<size_t>& file : files) {
    AddFile(static_cast<int>(files.size()), std::move(file));
  }
}

void SyntheticCheckpoint::AddFile(int num_files, std::vector<size_t> tensors) {
  const int index = static_cast<int>(layout_.size());
  // Larger elements first keeps all of them aligned, as in the hub's files.
  std::stable_sort(tensors.begin(), tensors.end(), [this](size_t a, size_t b) {
    const auto& all = generator_.tensors();
    return kernels::DtypeBytes(all[a].dtype) >
           kernels::DtypeBytes(all[b].dtype);
  });
  File file;
  std::string text = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t place = 0;
  for (const size_t i : tensors) {
    const SyntheticTensor& tensor = generator_.tensors()[i];
    const uint64_t end = place + Bytes(tensor);
    absl::StrAppend(&text, ",\"", tensor.name, "\":{\"dtype\":\"",
                    DtypeText(tensor.dtype), "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    place, ",", end, "]}");
    file.extents.push_back({.begin = place, .end = end, .tensor = i});
    place = end;
  }
  text += "}";
  file.header = WithLength(std::move(text));
  for (const Extent& extent : file.extents) {
    const SyntheticTensor& tensor = generator_.tensors()[extent.tensor];
    contents_.tensors.emplace(
        tensor.name, TensorInfo{.name = tensor.name,
                                .dtype = tensor.dtype,
                                .shape = tensor.shape,
                                .file = index,
                                .offset = file.header.size() + extent.begin,
                                .bytes = extent.end - extent.begin});
  }
  contents_.files.push_back(
      {.name = absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1,
                               num_files),
       .size = file.header.size() + place,
       .header_bytes = file.header.size(),
       .header_hash =
           XXH3_128bits(file.header.data() + 8, file.header.size() - 8)});
  layout_.push_back(std::move(file));
}

void SyntheticCheckpoint::MakeIndex() {
  uint64_t total = 0;
  nlohmann::json map = nlohmann::json::object();
  for (const auto& [name, info] : contents_.tensors) {
    total += info.bytes;
    map[name] = contents_.files[info.file].name;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}},
                                {"weight_map", std::move(map)}};
  contents_.index = index.dump(2) + "\n";
}

uint64_t SyntheticCheckpoint::bytes() const {
  uint64_t total = 0;
  for (const CheckpointContents::File& file : contents_.files) {
    total += file.size;
  }
  return total;
}

absl::Status SyntheticCheckpoint::Read(int file, uint64_t offset, size_t size,
                                       void* destination) const {
  const File& layout = layout_[file];
  RF_CHECK(offset <= contents_.files[file].size &&
           size <= contents_.files[file].size - offset);
  char* out = static_cast<char*>(destination);
  if (offset < layout.header.size()) {
    const size_t count = std::min(size, layout.header.size() - offset);
    std::memcpy(out, layout.header.data() + offset, count);
    out += count;
    offset += count;
    size -= count;
  }
  uint64_t place = offset - layout.header.size();
  auto extent = std::partition_point(
      layout.extents.begin(), layout.extents.end(),
      [place](const Extent& extent) { return extent.end <= place; });
  for (; size > 0; ++extent) {
    const size_t count = std::min<uint64_t>(size, extent->end - place);
    generator_.Fill(extent->tensor, place - extent->begin, count, out);
    out += count;
    place += count;
    size -= count;
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
