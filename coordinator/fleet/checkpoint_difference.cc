// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/checkpoint_difference.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ringfleet::coordinator {
namespace {

constexpr uint64_t kPageBytes = 4096;  // A page that the fingerprint samples.
// Tensors of one page that are named; biases and norms may be many.
constexpr size_t kMaxNamed = 3;
// Files that describe a checkpoint. They come before the files with tensors.
constexpr int kTextFiles = 2;

std::string Form(const v1::CheckpointTensor& tensor) {
  return absl::StrCat(tensor.dtype(), " [", absl::StrJoin(tensor.shape(), ", "),
                      "]");
}

// By name.
using Tensors = std::map<std::string, const v1::CheckpointTensor*>;

Tensors ByName(const v1::CheckpointFacts& facts) {
  Tensors tensors;
  for (const auto& tensor : facts.tensors()) tensors[tensor.name()] = &tensor;
  return tensors;
}

std::string TensorDifference(const Tensors& want, const Tensors& got) {
  for (const auto& [name, tensor] : want) {
    const auto other = got.find(name);
    if (other == got.end()) return absl::StrCat(name, ": missing");
    if (Form(*tensor) != Form(*other->second)) {
      return absl::StrCat(name, ": ", Form(*other->second), ", want ",
                          Form(*tensor));
    }
    // 0: not hashed.
    if (tensor->hash() != 0 && other->second->hash() != 0 &&
        tensor->hash() != other->second->hash()) {
      return absl::StrCat(name, ": XXH3-64 ",
                          absl::Hex(other->second->hash(), absl::kZeroPad16),
                          ", want ",
                          absl::Hex(tensor->hash(), absl::kZeroPad16));
    }
  }
  for (const auto& [name, tensor] : got) {
    if (!want.contains(name)) return absl::StrCat(name, ": not wanted");
  }
  return "";
}

// The tensors that have a byte of page `offset` of file `file`.
std::string TensorsAt(const v1::CheckpointFacts& facts, uint32_t file,
                      uint64_t offset) {
  std::vector<std::string> names;
  for (const v1::CheckpointTensor& tensor : facts.tensors()) {
    if (tensor.file() == file && tensor.offset() < offset + kPageBytes &&
        offset < tensor.offset() + tensor.bytes()) {
      names.push_back(tensor.name());
    }
  }
  if (names.size() > kMaxNamed) {
    names.resize(kMaxNamed);
    names.push_back("others");
  }
  return absl::StrJoin(names, " or ");
}

std::string FileDifference(const v1::CheckpointFacts& facts,
                           const v1::CheckpointFile& want,
                           const v1::CheckpointFile& got, int index) {
  if (want.name() != got.name()) {
    return absl::StrCat("file ", got.name(), ", want ", want.name());
  }
  const int pages = std::min(want.page_hashes_size(), got.page_hashes_size());
  for (int i = 0; i < pages; ++i) {
    if (want.page_offsets(i) != got.page_offsets(i)) break;
    if (want.page_hashes(i) == got.page_hashes(i)) continue;
    const std::string names =
        TensorsAt(facts, index - kTextFiles, want.page_offsets(i));
    return absl::StrCat(names.empty() ? "bytes of no tensor" : names,
                        ": other bytes near byte ", want.page_offsets(i),
                        " of ", want.name());
  }
  if (want.bytes() != got.bytes()) {
    return absl::StrCat(want.name(), ": ", got.bytes(), " bytes, want ",
                        want.bytes());
  }
  if (want.header_hash() != got.header_hash()) {
    return absl::StrCat(want.name(), ": ",
                        index < kTextFiles ? "another text" : "another header");
  }
  return "";
}

}  // namespace

std::string FindDifference(const v1::CheckpointFacts& want,
                           const v1::CheckpointFacts& got) {
  std::string difference = TensorDifference(ByName(want), ByName(got));
  if (!difference.empty()) return difference;
  if (want.files_size() != got.files_size()) {
    return absl::StrCat(got.files_size() - kTextFiles, " files, want ",
                        want.files_size() - kTextFiles);
  }
  // Files with tensors first: they say more.
  for (const bool texts : {false, true}) {
    for (int i = 0; i < want.files_size() && difference.empty(); ++i) {
      if ((i < kTextFiles) != texts) continue;
      difference = FileDifference(want, want.files(i), got.files(i), i);
    }
  }
  return difference;
}

}  // namespace ringfleet::coordinator
