// SPDX-License-Identifier: Apache-2.0
// A file is an 8-byte little-endian header length, a JSON header that maps
// names to dtype, shape and byte range, and the data
// (https://github.com/huggingface/safetensors#format).
#include "cluster/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <list>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/file_reader.h"
#include "cluster/status_macros.h"
#include "kernels/mutex.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

using Json = nlohmann::json;

constexpr char kIndexName[] = "model.safetensors.index.json";
// The format's own limit on a header; DeepSeek-R1's index has 9 MB.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kMaxOpenFiles = 32;
constexpr int kSampledPages = 64;
constexpr size_t kPageBytes = 4096;

struct DtypeEntry {
  absl::string_view name;
  uint64_t bytes;
  std::optional<kernels::Dtype> dtype;  // Nullopt: can't be read.
};

constexpr DtypeEntry kDtypes[] = {
    {"F32", 4, kernels::Dtype::kF32}, {"BF16", 2, kernels::Dtype::kBf16},
    {"F16", 2, kernels::Dtype::kF16}, {"F8_E4M3", 1, kernels::Dtype::kF8E4M3},
    {"F64", 8, std::nullopt},         {"F8_E5M2", 1, std::nullopt},
    {"I64", 8, std::nullopt},         {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},         {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},         {"U16", 2, std::nullopt},
    {"I8", 1, std::nullopt},          {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},
};

// Parses `text`; duplicate keys and nesting deeper than any header has are
// errors. `what` names the text in messages.
absl::StatusOr<Json> ParseStrict(absl::string_view text,
                                 absl::string_view what) {
  std::vector<absl::flat_hash_set<std::string>> keys;
  const auto on_event = [&keys](int depth, Json::parse_event_t event,
                                Json& value) {
    if (depth > 4) throw std::runtime_error("nested too deeply");
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      auto& name = value.get_ref<const std::string&>();
      if (!keys.back().insert(name).second) {
        throw std::runtime_error(absl::StrCat("duplicate key \"", name, "\""));
      }
    }
    return true;
  };
  try {
    Json value = Json::parse(text.begin(), text.end(), on_event);
    if (!value.is_object()) {
      return absl::DataLossError(absl::StrCat(what, ": want a JSON object"));
    }
    return value;
  } catch (const std::exception& e) {
    return absl::DataLossError(absl::StrCat(what, ": ", e.what()));
  }
}

bool IsCount(const Json& value) { return value.is_number_unsigned(); }

// A tensor of a header, whether or not its dtype can be read.
struct Entry {
  TensorInfo info;
  std::string unsupported_dtype;  // Empty when it can.
};

absl::StatusOr<Entry> ParseEntry(const std::string& name, const Json& value,
                                 uint64_t data_begin, uint64_t data_bytes) {
  const auto bad = [&name](const auto&... problem) {
    return absl::DataLossError(absl::StrCat("tensor ", name, ": ", problem...));
  };
  if (!value.is_object() || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return bad("want dtype, shape and data_offsets");
  }
  const Json& dtype = value["dtype"];
  const Json& shape = value["shape"];
  const Json& offsets = value["data_offsets"];
  if (!dtype.is_string()) return bad("dtype: want a string");
  if (!shape.is_array() || shape.size() > kMaxDimensions ||
      !std::all_of(shape.begin(), shape.end(), IsCount)) {
    return bad("shape: want at most ", kMaxDimensions, " sizes");
  }
  if (!offsets.is_array() || offsets.size() != 2 ||
      !std::all_of(offsets.begin(), offsets.end(), IsCount)) {
    return bad("data_offsets: want [begin, end]");
  }
  const auto begin = offsets[0].get<uint64_t>();
  const auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return bad("data_offsets [", begin, ", ", end, "), want a range within ",
               data_bytes, " bytes of data");
  }
  Entry entry;
  entry.info.name = name;
  entry.info.offset = data_begin + begin;
  entry.info.bytes = end - begin;
  uint64_t count = 1;
  bool overflow = false;
  for (const Json& size : shape) {
    const auto n = size.get<uint64_t>();
    overflow |= n > static_cast<uint64_t>(INT64_MAX);
    overflow |= __builtin_mul_overflow(count, n, &count);
    entry.info.shape.push_back(static_cast<int64_t>(n));
  }
  const auto& dtype_name = dtype.get_ref<const std::string&>();
  const auto* known =
      std::find_if(std::begin(kDtypes), std::end(kDtypes),
                   [&](const DtypeEntry& e) { return e.name == dtype_name; });
  if (known == std::end(kDtypes)) {
    // Its size can't be checked; the range alone was.
    entry.unsupported_dtype = dtype_name;
    return entry;
  }
  uint64_t bytes = 0;
  overflow |= __builtin_mul_overflow(count, known->bytes, &bytes);
  if (overflow || bytes != entry.info.bytes) {
    return bad(dtype_name, " [", absl::StrJoin(entry.info.shape, ", "),
               "] has ", entry.info.bytes, " bytes, want ",
               overflow ? "fewer than 2^64" : absl::StrCat(bytes));
  }
  if (known->dtype.has_value()) {
    entry.info.dtype = *known->dtype;
  } else {
    entry.unsupported_dtype = dtype_name;
  }
  return entry;
}

struct Header {
  std::string text;
  std::vector<Entry> entries;
};

absl::StatusOr<Header> ReadHeader(const FileReader& file) {
  const auto bad = [&file](const auto&... problem) {
    return absl::DataLossError(absl::StrCat(file.path(), ": ", problem...));
  };
  if (file.size() < 8) {
    return bad(file.size(), " bytes, want at least 8: truncated");
  }
  uint8_t prefix[8];
  RF_RETURN_IF_ERROR(file.Read(0, sizeof(prefix), prefix));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    return bad("header of ", length, " bytes, want at most ",
               std::min(kMaxHeaderBytes, file.size() - 8),
               ": corrupt or truncated");
  }
  Header header;
  header.text.resize(length);
  RF_RETURN_IF_ERROR(file.Read(8, length, header.text.data()));
  RF_ASSIGN_OR_RETURN(const Json json, ParseStrict(header.text, file.path()));
  const uint64_t data_begin = 8 + length;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<Entry> entry =
        ParseEntry(name, value, data_begin, file.size() - data_begin);
    if (!entry.ok()) return Annotate(entry.status(), file.path());
    header.entries.push_back(*std::move(entry));
  }
  std::vector<const TensorInfo*> order;
  for (const Entry& entry : header.entries) {
    if (entry.info.bytes > 0) order.push_back(&entry.info);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return bad("tensors ", order[i - 1]->name, " and ", order[i]->name,
                 " overlap at data offset ", order[i]->offset - data_begin);
    }
  }
  return header;
}

// Names of the checkpoint's files, and by the index which holds which tensor.
struct Layout {
  std::vector<std::string> files;                    // Sorted.
  std::optional<std::string> index;                  // Its text.
  absl::flat_hash_map<std::string, int> weight_map;  // Empty without index.
};

absl::StatusOr<Layout> ParseIndex(std::string text, const std::string& path) {
  RF_ASSIGN_OR_RETURN(const Json json, ParseStrict(text, path));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": weight_map: want names and their files"));
  }
  Layout layout;
  layout.index = std::move(text);
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      return absl::DataLossError(
          absl::StrCat(path, ": weight_map.", name, ": want a file name"));
    }
    const auto& file_name = file.get_ref<const std::string&>();
    if (file_name.empty() || absl::StrContains(file_name, '/') ||
        absl::StrContains(file_name, "..") ||
        absl::StrContains(file_name, '\0')) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map.", name, ": \"", file_name,
                       "\", want the name of a file in the same folder"));
    }
    layout.files.push_back(file_name);
  }
  std::sort(layout.files.begin(), layout.files.end());
  layout.files.erase(std::unique(layout.files.begin(), layout.files.end()),
                     layout.files.end());
  for (const auto& [name, file] : map->items()) {
    const auto it = std::lower_bound(layout.files.begin(), layout.files.end(),
                                     file.get_ref<const std::string&>());
    layout.weight_map[name] = static_cast<int>(it - layout.files.begin());
  }
  return layout;
}

absl::StatusOr<Layout> FindLayout(const std::string& model_dir) {
  const std::string index_path = absl::StrCat(model_dir, "/", kIndexName);
  absl::StatusOr<std::string> index =
      ReadSmallFile(index_path, kMaxHeaderBytes);
  if (index.ok()) return ParseIndex(*std::move(index), index_path);
  if (!absl::IsNotFound(index.status())) return index.status();

  Layout layout;
  std::error_code error;
  std::filesystem::directory_iterator entry(model_dir, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, ".safetensors")) {
      layout.files.push_back(std::move(name));
    }
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat(model_dir, ": ", error.message()));
  }
  std::sort(layout.files.begin(), layout.files.end());
  if (std::binary_search(layout.files.begin(), layout.files.end(),
                         "model.safetensors")) {
    layout.files = {"model.safetensors"};
  }
  if (layout.files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(model_dir, ": no *.safetensors file"));
  }
  if (layout.files.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        model_dir, ": ", layout.files.size(), " *.safetensors files, want ",
        kIndexName, " to say which holds what"));
  }
  return layout;
}

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
  RF_ASSIGN_OR_RETURN(Layout layout, FindLayout(model_dir));
  auto impl = std::make_unique<Impl>();
  impl->dir = model_dir;
  impl->index = std::move(layout.index);
  for (size_t i = 0; i < layout.files.size(); ++i) {
    const std::string& name = layout.files[i];
    absl::StatusOr<FileReader> file =
        FileReader::Open(absl::StrCat(model_dir, "/", name));
    if (absl::IsNotFound(file.status()) && impl->index.has_value()) {
      return absl::NotFoundError(absl::StrCat(model_dir, ": missing file ",
                                              name, ", which the index names"));
    }
    RF_RETURN_IF_ERROR(file.status());
    RF_ASSIGN_OR_RETURN(Header header, ReadHeader(*file));
    impl->files.push_back(
        {.name = name,
         .identity = file->identity(),
         .header_bytes = 8 + header.text.size(),
         .header_hash = XXH3_128bits(header.text.data(), header.text.size())});
    for (Entry& entry : header.entries) {
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
