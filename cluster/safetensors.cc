// SPDX-License-Identifier: Apache-2.0
#include "cluster/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/checkpoint_source.h"
#include "cluster/model_files.h"
#include "cluster/safetensors_header.h"
#include "cluster/status_macros.h"
#include "cluster/synthetic_checkpoint.h"
#include "cluster/synthetic_model.h"

namespace ringfleet::cluster {
namespace {

constexpr int kSampledPages = 64;
constexpr size_t kPageBytes = 4096;

}  // namespace

struct Checkpoint::Impl {
  explicit Impl(std::unique_ptr<const CheckpointSource> opened)
      : source(std::move(opened)), contents(source->contents()) {}

  const std::unique_ptr<const CheckpointSource> source;
  const CheckpointContents& contents;
  mutable std::atomic<uint64_t> bytes_read = 0;
};

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& model) {
  std::unique_ptr<CheckpointSource> source;
  if (IsSyntheticModel(model)) {
    RF_ASSIGN_OR_RETURN(source, SyntheticCheckpoint::Open(model));
  } else {
    RF_ASSIGN_OR_RETURN(source, OpenCheckpointFolder(model));
  }
  return std::unique_ptr<Checkpoint>(
      new Checkpoint(std::make_unique<Impl>(std::move(source))));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

absl::StatusOr<const TensorInfo*> Checkpoint::Find(
    absl::string_view name) const {
  if (const auto it = impl_->contents.tensors.find(name);
      it != impl_->contents.tensors.end()) {
    return &it->second;
  }
  if (const auto it = impl_->contents.unsupported.find(name);
      it != impl_->contents.unsupported.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": dtype ", it->second, ", want F32, BF16, F16 or F8_E4M3"));
  }
  return absl::NotFoundError(
      absl::StrCat("no tensor ", name, " in ", impl_->contents.model));
}

bool Checkpoint::Contains(absl::string_view name) const {
  return impl_->contents.tensors.contains(name) ||
         impl_->contents.unsupported.contains(name);
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  names.reserve(impl_->contents.tensors.size() +
                impl_->contents.unsupported.size());
  for (const auto& [name, info] : impl_->contents.tensors)
    names.push_back(name);
  for (const auto& [name, dtype] : impl_->contents.unsupported)
    names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const std::string& Checkpoint::FileName(const TensorInfo& tensor) const {
  return impl_->contents.files[tensor.file].name;
}

absl::Status Checkpoint::Read(const TensorInfo& tensor, uint64_t offset,
                              size_t size, void* destination) const {
  if (offset > tensor.bytes || size > tensor.bytes - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.name, ": read of bytes [", offset, ", +", size,
                     "), want a range within ", tensor.bytes));
  }
  if (size == 0) return absl::OkStatus();
  RF_RETURN_IF_ERROR(
      Annotate(impl_->source->Read(tensor.file, tensor.offset + offset, size,
                                   destination),
               tensor.name));
  impl_->bytes_read.fetch_add(size, std::memory_order_relaxed);
  return absl::OkStatus();
}

uint64_t Checkpoint::bytes_read() const {
  return impl_->bytes_read.load(std::memory_order_relaxed);
}

absl::StatusOr<std::string> Checkpoint::Fingerprint() const {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(
      XXH3_createState(), XXH3_freeState);
  XXH3_128bits_reset(state.get());
  // Each part is preceded by its length, so that no two lists of parts share
  // one stream of bytes.
  const auto add = [&state](absl::string_view part) {
    const uint64_t size = part.size();
    XXH3_128bits_update(state.get(), &size, sizeof(size));
    XXH3_128bits_update(state.get(), part.data(), part.size());
  };
  const absl::StatusOr<std::string> config =
      ReadModelFile(impl_->contents.model, "config.json", kMaxHeaderBytes);
  if (!config.ok() && !absl::IsNotFound(config.status())) {
    return config.status();
  }
  add(config.ok() ? *config : "");
  add(impl_->contents.index.value_or(""));
  std::string page(kPageBytes, '\0');
  for (size_t i = 0; i < impl_->contents.files.size(); ++i) {
    const CheckpointContents::File& file = impl_->contents.files[i];
    add(file.name);
    XXH128_canonical_t header;
    XXH128_canonicalFromHash(&header, file.header_hash);
    add(absl::string_view(reinterpret_cast<const char*>(header.digest),
                          sizeof(header.digest)));
    add(absl::StrCat(file.size));
    // Page p starts at p/63 of the way from the first to the last page.
    const uint64_t data = file.size - file.header_bytes;
    const uint64_t last = data > kPageBytes ? data - kPageBytes : 0;
    for (uint64_t p = 0; p < kSampledPages; ++p) {
      const uint64_t offset =
          last / (kSampledPages - 1) * p +
          last % (kSampledPages - 1) * p / (kSampledPages - 1);
      const size_t size = std::min<uint64_t>(kPageBytes, data - offset);
      RF_RETURN_IF_ERROR(impl_->source->Read(
          static_cast<int>(i), file.header_bytes + offset, size, page.data()));
      add(absl::string_view(page.data(), size));
    }
  }
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state.get()));
  std::string hex;
  for (const unsigned char byte : digest.digest) {
    absl::StrAppendFormat(&hex, "%02x", byte);
  }
  return hex;
}

}  // namespace ringfleet::cluster
