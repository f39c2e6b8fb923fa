// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/safetensors_header.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/process/file_error.h"
#include "cluster/process/file_reader.h"
#include "cluster/process/status_macros.h"
#include "nlohmann/json.hpp"

namespace ringfleet::cluster {
namespace {

constexpr size_t kMaxDimensions = 8;

struct DtypeEntry {
  absl::string_view name;
  uint64_t bytes;
  std::optional<kernels::Dtype> dtype;  // Nullopt: can't be read.
};

constexpr DtypeEntry kDtypes[] = {
    {"F32", 4, kernels::Dtype::kF32},
    {"BF16", 2, kernels::Dtype::kBf16},
    {"F16", 2, kernels::Dtype::kF16},
    {"F8_E4M3", 1, kernels::Dtype::kF8E4M3},
    {"I8", 1, kernels::Dtype::kInt8},
    {"F8_E8M0", 1, kernels::Dtype::kF8E8M0},
    {"I32", 4, kernels::Dtype::kInt32},
    {"I64", 8, kernels::Dtype::kInt64},
    {"F64", 8, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
    {"U64", 8, std::nullopt},
    {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},
    {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},
};

// Parses `text`; duplicate keys and nesting deeper than any header has are
// errors. `what` names the text in messages.
absl::StatusOr<nlohmann::json> ParseStrict(absl::string_view text,
                                           absl::string_view what) {
  std::vector<absl::flat_hash_set<std::string>> keys;
  const auto on_event = [&keys](int depth, nlohmann::json::parse_event_t event,
                                nlohmann::json& value) {
    if (depth > 4) throw std::runtime_error("nested too deeply");
    if (event == nlohmann::json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == nlohmann::json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == nlohmann::json::parse_event_t::key) {
      auto& name = value.get_ref<const std::string&>();
      if (!keys.back().insert(name).second) {
        throw std::runtime_error(absl::StrCat("duplicate key \"", name, "\""));
      }
    }
    return true;
  };
  try {
    nlohmann::json value =
        nlohmann::json::parse(text.begin(), text.end(), on_event);
    if (!value.is_object()) {
      return absl::DataLossError(absl::StrCat(what, ": want a JSON object"));
    }
    return value;
  } catch (const std::exception& e) {
    return absl::DataLossError(absl::StrCat(what, ": ", e.what()));
  }
}

bool IsCount(const nlohmann::json& value) { return value.is_number_unsigned(); }

absl::StatusOr<HeaderEntry> ParseEntry(const std::string& name,
                                       const nlohmann::json& value,
                                       uint64_t data_begin,
                                       uint64_t data_bytes) {
  const auto bad = [&name](const auto&... problem) {
    return absl::DataLossError(absl::StrCat("tensor ", name, ": ", problem...));
  };
  if (!value.is_object() || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return bad("want dtype, shape and data_offsets");
  }
  const nlohmann::json& dtype = value["dtype"];
  const nlohmann::json& shape = value["shape"];
  const nlohmann::json& offsets = value["data_offsets"];
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
  HeaderEntry entry;
  entry.info.name = name;
  entry.info.offset = data_begin + begin;
  entry.info.bytes = end - begin;
  uint64_t count = 1;
  bool overflow = false;
  for (const nlohmann::json& size : shape) {
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
  const std::string sizes = absl::StrJoin(entry.info.shape, ", ");
  if (overflow) return bad("shape [", sizes, "] is larger than any file");
  if (bytes != entry.info.bytes) {
    return bad(dtype_name, " [", sizes, "] has ", entry.info.bytes,
               " bytes, want ", bytes);
  }
  if (known->dtype.has_value()) {
    entry.info.dtype = *known->dtype;
  } else {
    entry.unsupported_dtype = dtype_name;
  }
  return entry;
}

}  // namespace

absl::StatusOr<CheckpointLayout> ParseIndex(std::string text,
                                            const std::string& path) {
  RF_ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrict(text, path));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": weight_map: want names and their files"));
  }
  CheckpointLayout layout;
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

absl::StatusOr<Header> ReadHeader(const std::string& path, uint64_t file_bytes,
                                  ReadBytes read) {
  const auto bad = [&path](const auto&... problem) {
    return absl::DataLossError(absl::StrCat(path, ": ", problem...));
  };
  if (file_bytes < 8) {
    return bad(file_bytes, " bytes, want at least 8: truncated");
  }
  uint8_t prefix[8];
  RF_RETURN_IF_ERROR(read(0, sizeof(prefix), prefix));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | prefix[i];
  if (length > kMaxHeaderBytes || length > file_bytes - 8) {
    return bad("header of ", length, " bytes, want at most ",
               std::min(kMaxHeaderBytes, file_bytes - 8),
               ": corrupt or truncated");
  }
  Header header;
  header.text.resize(length);
  RF_RETURN_IF_ERROR(read(8, length, header.text.data()));
  RF_ASSIGN_OR_RETURN(const nlohmann::json json,
                      ParseStrict(header.text, path));
  const uint64_t data_begin = 8 + length;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    absl::StatusOr<HeaderEntry> entry =
        ParseEntry(name, value, data_begin, file_bytes - data_begin);
    if (!entry.ok()) return Annotate(entry.status(), path);
    header.entries.push_back(*std::move(entry));
  }
  std::vector<const TensorInfo*> order;
  for (const HeaderEntry& entry : header.entries) {
    if (entry.info.bytes > 0) order.push_back(&entry.info);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  uint64_t end = data_begin;  // End of the tensors so far.
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t offset = order[i]->offset;
    if (offset < end) {
      return bad("tensors ", order[i - 1]->name, " and ", order[i]->name,
                 " overlap at data offset ", offset - data_begin);
    }
    if (offset > end) {
      return bad(offset - end, " bytes before ", order[i]->name,
                 " at data offset ", end - data_begin,
                 " belong to no tensor, want none");
    }
    end += order[i]->bytes;
  }
  if (end != file_bytes) {
    return bad(file_bytes - end, " bytes behind the last tensor, want none");
  }
  return header;
}

absl::StatusOr<CheckpointLayout> FindCheckpointLayout(
    const std::string& model_dir) {
  const std::string index_path = absl::StrCat(model_dir, "/", kIndexName);
  absl::StatusOr<std::string> index =
      ReadSmallFile(index_path, kMaxHeaderBytes);
  if (index.ok()) return ParseIndex(*std::move(index), index_path);
  if (!absl::IsNotFound(index.status())) return index.status();

  CheckpointLayout layout;
  std::error_code error;
  std::filesystem::directory_iterator entry(model_dir, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, ".safetensors")) {
      layout.files.push_back(std::move(name));
    }
  }
  if (error == std::errc::no_such_file_or_directory) {
    return absl::NotFoundError(absl::StrCat(model_dir, ": ", error.message()));
  }
  if (error) return FileError(model_dir, error.value());
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

}  // namespace ringfleet::cluster
