// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/checkpoint_folder.h"

#include <list>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/safetensors_header.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status_macros.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {
namespace {

// Enough for a load that goes layer by layer; shards of a layer are few.
constexpr size_t kMaxOpenFiles = 32;

class CheckpointFolder final : public CheckpointSource {
 public:
  explicit CheckpointFolder(std::unique_ptr<const CheckpointFetcher> fetcher)
      : fetcher_(std::move(fetcher)) {}

  absl::Status Open(const std::string& model_dir);

  absl::Status Read(int file, uint64_t offset, size_t size,
                    void* destination) const override {
    if (Fetches(file)) {
      return fetcher_->Read(contents_.files[file].name, offset, size, size, 1,
                            static_cast<char*>(destination));
    }
    RF_ASSIGN_OR_RETURN(const std::shared_ptr<const FileReader> reader,
                        Acquire(file));
    RF_RETURN_IF_ERROR(reader->Read(offset, size, destination));
    // After the read: what was read came from the file that was validated.
    return reader->CheckUnchanged();
  }

  absl::Status ReadRows(int file, uint64_t offset, size_t size, uint64_t stride,
                        size_t count, char* destination) const override {
    if (Fetches(file)) {
      return fetcher_->Read(contents_.files[file].name, offset, size, stride,
                            count, destination);
    }
    RF_ASSIGN_OR_RETURN(const std::shared_ptr<const FileReader> reader,
                        Acquire(file));
    for (size_t i = 0; i < count; ++i) {
      RF_RETURN_IF_ERROR(
          reader->Read(offset + i * stride, size, destination + i * size));
    }
    return reader->CheckUnchanged();
  }

  bool Fetches(int file) const override {
    return !identities_[file].has_value();
  }
  uint64_t bytes_fetched() const override {
    return fetcher_ == nullptr ? 0 : fetcher_->bytes_fetched();
  }

 private:
  // The text of a file that is no safetensors file. NOT_FOUND; it is too long.
  absl::StatusOr<std::string> ReadText(const std::string& name) const;
  absl::StatusOr<CheckpointLayout> FindLayout() const;
  absl::Status AddFile(const CheckpointLayout& layout, int index);

  // An open reader of file `index`: at most kMaxOpenFiles stay open, the least
  // recently used is closed once nobody reads from it.
  absl::StatusOr<std::shared_ptr<const FileReader>> Acquire(int index) const;

  const std::unique_ptr<const CheckpointFetcher> fetcher_;  // Or null.
  // By file; nothing of those that are fetched.
  std::vector<std::optional<FileReader::Identity>> identities_;
  mutable Mutex mu_;
  mutable std::list<std::pair<int, std::shared_ptr<const FileReader>>> open_
      ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::shared_ptr<const FileReader>> CheckpointFolder::Acquire(
    int index) const {
  {
    MutexLock lock(&mu_);
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      if (it->first != index) continue;
      open_.splice(open_.begin(), open_, it);
      return it->second;
    }
  }
  RF_ASSIGN_OR_RETURN(FileReader reader,
                      FileReader::Open(absl::StrCat(
                          contents_.model, "/", contents_.files[index].name)));
  if (!(reader.identity() == *identities_[index])) {
    return absl::DataLossError(absl::StrCat(
        reader.path(), ": changed after the checkpoint was opened (",
        identities_[index]->size, " bytes then, ", reader.size(), " now)"));
  }
  auto shared = std::make_shared<const FileReader>(std::move(reader));
  MutexLock lock(&mu_);
  open_.emplace_front(index, shared);
  if (open_.size() > kMaxOpenFiles) open_.pop_back();
  return shared;
}

absl::Status CheckpointFolder::AddFile(const CheckpointLayout& layout,
                                       int index) {
  const std::string& name = layout.files[index];
  const std::string path = absl::StrCat(contents_.model, "/", name);
  const absl::StatusOr<FileReader> file = FileReader::Open(path);
  const CheckpointFetcher::File* fetched =
      fetcher_ == nullptr ? nullptr : fetcher_->Find(name);
  if (file.ok()) {
    if (fetched != nullptr && fetched->size != file->size()) {
      return absl::DataLossError(
          absl::StrCat(path, ": ", file->size(), " bytes, want ", fetched->size,
                       " as at ", fetcher_->SourceNames()));
    }
    identities_.emplace_back(file->identity());
    contents_.files.push_back({.name = name,
                               .size = file->size(),
                               .modified_ns = file->identity().modified_ns});
  } else if (absl::IsNotFound(file.status()) && fetched != nullptr) {
    identities_.emplace_back();
    contents_.files.push_back({.name = name,
                               .size = fetched->size,
                               .modified_ns = fetched->modified_ns});
  } else if (absl::IsNotFound(file.status()) && contents_.index.has_value()) {
    return absl::DataLossError(absl::StrCat(contents_.model, ": missing file ",
                                            name, ", which the index names"));
  } else {
    return file.status();
  }
  RF_ASSIGN_OR_RETURN(
      Header header,
      ReadHeader(path, contents_.files[index].size,
                 [&](uint64_t offset, size_t size, void* destination) {
                   return Fetches(index)
                              ? Read(index, offset, size, destination)
                              : file->Read(offset, size, destination);
                 }));
  contents_.files[index].header_bytes = 8 + header.text.size();
  contents_.files[index].header_hash =
      XXH3_128bits(header.text.data(), header.text.size());
  for (HeaderEntry& entry : header.entries) {
    entry.info.file = index;
    if (contents_.index.has_value()) {
      // Skips tensors that the index does not name in this file.
      const auto it = layout.weight_map.find(entry.info.name);
      if (it == layout.weight_map.end() || it->second != index) continue;
    }
    std::string key = entry.info.name;
    if (entry.unsupported_dtype.empty()) {
      contents_.tensors.emplace(std::move(key), std::move(entry.info));
    } else {
      contents_.unsupported.emplace(std::move(key),
                                    std::move(entry.unsupported_dtype));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointFolder::ReadText(
    const std::string& name) const {
  absl::StatusOr<std::string> text =
      ReadSmallFile(absl::StrCat(contents_.model, "/", name), kMaxHeaderBytes);
  if (fetcher_ == nullptr || !absl::IsNotFound(text.status())) return text;
  return fetcher_->ReadWhole(name, kMaxHeaderBytes);
}

absl::StatusOr<CheckpointLayout> CheckpointFolder::FindLayout() const {
  if (fetcher_ == nullptr) return FindCheckpointLayout(contents_.model);
  absl::StatusOr<std::string> index = ReadText(kIndexName);
  if (index.ok()) {
    return ParseIndex(*std::move(index),
                      absl::StrCat(contents_.model, "/", kIndexName));
  }
  if (!absl::IsNotFound(index.status())) return index.status();
  CheckpointLayout layout;
  for (const CheckpointFetcher::File& file : fetcher_->files()) {
    if (absl::EndsWith(file.name, ".safetensors")) {
      layout.files.push_back(file.name);
    }
  }
  return layout;
}

absl::Status CheckpointFolder::Open(const std::string& model_dir) {
  contents_.model = model_dir;
  RF_ASSIGN_OR_RETURN(CheckpointLayout layout, FindLayout());
  contents_.index = std::move(layout.index);
  absl::StatusOr<std::string> config = ReadText("config.json");
  if (config.ok()) {
    contents_.config = *std::move(config);
  } else if (!absl::IsNotFound(config.status())) {
    return config.status();
  }
  absl::StatusOr<std::string> params = ReadText("params.json");
  if (params.ok()) {
    contents_.params = *std::move(params);
  } else if (!absl::IsNotFound(params.status())) {
    return params.status();
  }
  for (size_t i = 0; i < layout.files.size(); ++i) {
    RF_RETURN_IF_ERROR(AddFile(layout, static_cast<int>(i)));
  }
  // Lowest name first, so that the message doesn't depend on hashing.
  const std::string* missing = nullptr;
  for (const auto& [name, file] : layout.weight_map) {
    if (!contents_.tensors.contains(name) &&
        !contents_.unsupported.contains(name) &&
        (missing == nullptr || name < *missing)) {
      missing = &name;
    }
  }
  if (missing == nullptr) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      model_dir, ": the index names ", *missing, " in ",
      layout.files[layout.weight_map[*missing]], ", which lacks it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointSource>> OpenCheckpointFolder(
    const std::string& model_dir,
    std::unique_ptr<const CheckpointFetcher> fetcher) {
  auto folder = std::make_unique<CheckpointFolder>(std::move(fetcher));
  RF_RETURN_IF_ERROR(folder->Open(model_dir));
  return folder;
}

}  // namespace ringfleet::cluster
