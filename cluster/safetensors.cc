// SPDX-License-Identifier: Apache-2.0
#include "cluster/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/file_reader.h"
#include "cluster/safetensors_header.h"
#include "cluster/status_macros.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {
namespace {

// Enough for a load that goes layer by layer; shards of a layer are few.
constexpr size_t kMaxOpenFiles = 32;
constexpr int kSampledPages = 64;
constexpr size_t kPageBytes = 4096;

}  // namespace

struct Checkpoint::Impl {
  struct File {
    std::string name;
    FileReader::Identity identity;
    uint64_t header_bytes = 0;  // With the length before it.
    XXH128_hash_t header_hash = {};
  };

  // An open reader of file `index`: at most kMaxOpenFiles stay open, the least
  // recently used is closed once nobody reads from it.
  absl::StatusOr<std::shared_ptr<const FileReader>> Acquire(int index) const {
    {
      MutexLock lock(&mu);
      for (auto it = open.begin(); it != open.end(); ++it) {
        if (it->first != index) continue;
        open.splice(open.begin(), open, it);
        return it->second;
      }
    }
    const File& file = files[index];
    RF_ASSIGN_OR_RETURN(FileReader reader,
                        FileReader::Open(absl::StrCat(dir, "/", file.name)));
    if (!(reader.identity() == file.identity)) {
      return absl::DataLossError(absl::StrCat(
          reader.path(), ": changed after the checkpoint was opened (",
          file.identity.size, " bytes then, ", reader.size(), " now)"));
    }
    auto shared = std::make_shared<const FileReader>(std::move(reader));
    MutexLock lock(&mu);
    open.emplace_front(index, shared);
    if (open.size() > kMaxOpenFiles) open.pop_back();
    return shared;
  }

  std::string dir;
  std::vector<File> files;
  std::optional<std::string> index;
  absl::flat_hash_map<std::string, TensorInfo> tensors;
  absl::flat_hash_map<std::string, std::string> unsupported;  // Name to dtype.
  mutable std::atomic<uint64_t> bytes_read = 0;
  mutable Mutex mu;
  mutable std::list<std::pair<int, std::shared_ptr<const FileReader>>> open
      ABSL_GUARDED_BY(mu);
};

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& model_dir) {
  RF_ASSIGN_OR_RETURN(CheckpointLayout layout, FindCheckpointLayout(model_dir));
  auto impl = std::make_unique<Impl>();
  impl->dir = model_dir;
  impl->index = std::move(layout.index);
  for (size_t i = 0; i < layout.files.size(); ++i) {
    const std::string& name = layout.files[i];
    absl::StatusOr<FileReader> file =
        FileReader::Open(absl::StrCat(model_dir, "/", name));
    if (absl::IsNotFound(file.status()) && impl->index.has_value()) {
      return absl::DataLossError(absl::StrCat(model_dir, ": missing file ",
                                              name, ", which the index names"));
    }
    RF_RETURN_IF_ERROR(file.status());
    RF_ASSIGN_OR_RETURN(Header header, ReadHeader(*file));
    impl->files.push_back(
        {.name = name,
         .identity = file->identity(),
         .header_bytes = 8 + header.text.size(),
         .header_hash = XXH3_128bits(header.text.data(), header.text.size())});
    for (HeaderEntry& entry : header.entries) {
      entry.info.file = static_cast<int>(i);
      if (impl->index.has_value()) {
        // What the index doesn't place in this file is left alone.
        const auto it = layout.weight_map.find(entry.info.name);
        if (it == layout.weight_map.end() || it->second != entry.info.file) {
          continue;
        }
      }
      std::string key = entry.info.name;
      if (entry.unsupported_dtype.empty()) {
        impl->tensors.emplace(std::move(key), std::move(entry.info));
      } else {
        impl->unsupported.emplace(std::move(key),
                                  std::move(entry.unsupported_dtype));
      }
    }
  }
  // Lowest name first, so that the message doesn't depend on hashing.
  const std::string* missing = nullptr;
  for (const auto& [name, file] : layout.weight_map) {
    if (!impl->tensors.contains(name) && !impl->unsupported.contains(name) &&
        (missing == nullptr || name < *missing)) {
      missing = &name;
    }
  }
  if (missing != nullptr) {
    return absl::DataLossError(absl::StrCat(
        model_dir, ": the index names ", *missing, " in ",
        layout.files[layout.weight_map[*missing]], ", which lacks it"));
  }
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

absl::StatusOr<const TensorInfo*> Checkpoint::Find(
    absl::string_view name) const {
  if (const auto it = impl_->tensors.find(name); it != impl_->tensors.end()) {
    return &it->second;
  }
  if (const auto it = impl_->unsupported.find(name);
      it != impl_->unsupported.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": dtype ", it->second, ", want F32, BF16, F16 or F8_E4M3"));
  }
  return absl::NotFoundError(
      absl::StrCat("no tensor ", name, " in ", impl_->dir));
}

bool Checkpoint::Contains(absl::string_view name) const {
  return impl_->tensors.contains(name) || impl_->unsupported.contains(name);
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  names.reserve(impl_->tensors.size() + impl_->unsupported.size());
  for (const auto& [name, info] : impl_->tensors) names.push_back(name);
  for (const auto& [name, dtype] : impl_->unsupported) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

const std::string& Checkpoint::FileName(const TensorInfo& tensor) const {
  return impl_->files[tensor.file].name;
}

absl::Status Checkpoint::Read(const TensorInfo& tensor, uint64_t offset,
                              size_t size, void* destination) const {
  if (offset > tensor.bytes || size > tensor.bytes - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.name, ": read of bytes [", offset, ", +", size,
                     "), want a range within ", tensor.bytes));
  }
  if (size == 0) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const std::shared_ptr<const FileReader> file,
                      impl_->Acquire(tensor.file));
  RF_RETURN_IF_ERROR(Annotate(
      file->Read(tensor.offset + offset, size, destination), tensor.name));
  // After the read: what was read came from the file that was validated.
  RF_RETURN_IF_ERROR(Annotate(file->CheckUnchanged(), tensor.name));
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
      ReadSmallFile(absl::StrCat(impl_->dir, "/config.json"), kMaxHeaderBytes);
  if (!config.ok() && !absl::IsNotFound(config.status())) {
    return config.status();
  }
  add(config.ok() ? *config : "");
  add(impl_->index.value_or(""));
  std::string page(kPageBytes, '\0');
  for (size_t i = 0; i < impl_->files.size(); ++i) {
    const Impl::File& file = impl_->files[i];
    add(file.name);
    XXH128_canonical_t header;
    XXH128_canonicalFromHash(&header, file.header_hash);
    add(absl::string_view(reinterpret_cast<const char*>(header.digest),
                          sizeof(header.digest)));
    add(absl::StrCat(file.identity.size));
    RF_ASSIGN_OR_RETURN(const std::shared_ptr<const FileReader> reader,
                        impl_->Acquire(static_cast<int>(i)));
    // Page p starts at p/63 of the way from the first to the last page.
    const uint64_t data = file.identity.size - file.header_bytes;
    const uint64_t last = data > kPageBytes ? data - kPageBytes : 0;
    for (uint64_t p = 0; p < kSampledPages; ++p) {
      const uint64_t offset =
          last / (kSampledPages - 1) * p +
          last % (kSampledPages - 1) * p / (kSampledPages - 1);
      const size_t size = std::min<uint64_t>(kPageBytes, data - offset);
      RF_RETURN_IF_ERROR(
          reader->Read(file.header_bytes + offset, size, page.data()));
      add(absl::string_view(page.data(), size));
    }
    RF_RETURN_IF_ERROR(reader->CheckUnchanged());
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
