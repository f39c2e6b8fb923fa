// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/config_section.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "cluster/process/nearest_name.h"
#include "cluster/rpc/host_address.h"
#include "cluster/synthetic/synthetic_model.h"

namespace ringfleet::cluster {
ConfigSection::ConfigSection(ConfigReading* reading, const ConfigTree* tree,
                             std::string path,
                             const std::vector<absl::string_view>& known)
    : reading_(reading), tree_(tree), path_(std::move(path)) {
  if (tree_ == nullptr) return;
  if (tree_->kind != ConfigTree::kMap) {
    reading_->Fail(tree_->line, path_.empty() ? "the file" : path_,
                   " is not a map, want keys among ",
                   absl::StrJoin(known, ", "));
    tree_ = nullptr;
    return;
  }
  std::map<absl::string_view, int> seen;
  for (const ConfigTree& key : tree_->keys) {
    if (std::find(known.begin(), known.end(), key.scalar) == known.end()) {
      FailUnknown(key, known);
      continue;
    }
    const auto [first, is_new] = seen.emplace(key.scalar, key.line);
    if (!is_new) {
      reading_->Fail(key.line, "duplicate key '", key.scalar,
                     "', first on line ", first->second);
    }
  }
}

const ConfigTree* ConfigSection::Find(absl::string_view key) const {
  if (tree_ == nullptr) return nullptr;
  for (size_t i = 0; i < tree_->keys.size(); ++i) {
    if (tree_->keys[i].scalar == key) return &tree_->items[i];
  }
  return nullptr;
}

int ConfigSection::LineOf(absl::string_view key) const {
  const ConfigTree* const found = Find(key);
  return found == nullptr ? line() : found->line;
}

std::string ConfigSection::PathOf(absl::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

void ConfigSection::Text(absl::string_view key, std::string* out) const {
  const ConfigTree* tree = Scalar(key, "text");
  if (tree != nullptr) *out = tree->scalar;
}

void ConfigSection::Word(absl::string_view key, absl::string_view extra,
                         std::string* out) const {
  const ConfigTree* tree = Scalar(key, "a word");
  if (tree == nullptr) return;
  const std::string& word = tree->scalar;
  const bool good =
      !word.empty() && word.size() <= 253 && word[0] != '-' && word != "." &&
      word != ".." &&
      std::all_of(word.begin(), word.end(), [&](unsigned char c) {
        return absl::ascii_isalnum(c) ||
               extra.find(static_cast<char>(c)) != absl::string_view::npos;
      });
  if (!good) {
    reading_->Fail(tree->line, PathOf(key), ": '", word,
                   "', want letters, digits and any of ", extra,
                   ", not starting with '-'");
  }
  *out = word;
}

void ConfigSection::Host(absl::string_view key, std::string* out) const {
  const ConfigTree* tree = Scalar(key, "a host");
  if (tree == nullptr) return;
  if (absl::StartsWith(tree->scalar, "-") || tree->scalar.size() > 253 ||
      !ParseAddress(FormatAddress({tree->scalar, 0})).ok()) {
    reading_->Fail(tree->line, PathOf(key), ": '", tree->scalar,
                   "', want a host name or an IP address");
    return;
  }
  *out = tree->scalar;
}

void ConfigSection::Integer(absl::string_view key, int least, int most,
                            int* out) const {
  const ConfigTree* tree = Scalar(key, "a number");
  if (tree == nullptr) return;
  int value = 0;
  if (!absl::SimpleAtoi(tree->scalar, &value) || value < least ||
      value > most) {
    reading_->Fail(tree->line, PathOf(key), ": '", tree->scalar,
                   "', want a whole number from ", least, " to ", most);
    return;
  }
  *out = value;
}

void ConfigSection::Number(absl::string_view key, double most,
                           double* out) const {
  const ConfigTree* tree = Scalar(key, "a number");
  if (tree == nullptr) return;
  double value = 0;
  if (!absl::SimpleAtod(tree->scalar, &value) || !std::isfinite(value) ||
      value <= 0 || value > most) {
    reading_->Fail(tree->line, PathOf(key), ": '", tree->scalar,
                   "', want a number above 0, at most ", most);
    return;
  }
  *out = value;
}

void ConfigSection::Value(const Setting& setting,
                          v1::FleetSettings* out) const {
  const v1::SettingForm form = setting.options().form();
  const absl::string_view key = setting.key();
  if (form == v1::SETTING_FORM_MODEL && Find(key) == nullptr) {
    reading_->Fail(line(), key, ": missing, want the checkpoint's folder");
    return;
  }
  const auto type = setting.field->cpp_type();
  const bool is_number =
      type == google::protobuf::FieldDescriptor::CPPTYPE_UINT32 ||
      type == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE;
  const ConfigTree* const tree =
      Scalar(key, is_number ? "a number" : WantedValue(setting));
  if (tree == nullptr) return;
  std::string text = tree->scalar;
  if (form == v1::SETTING_FORM_MODEL && IsSyntheticModel(text)) {
    const absl::Status named = ParseSyntheticModel(text).status();
    if (!named.ok()) reading_->Fail(tree->line, key, ": ", named.message());
  } else if (form != v1::SETTING_FORM_UNSPECIFIED) {
    text = AbsolutePath(*tree, key);
  }
  const absl::Status set = SetSetting(setting, text, out);
  if (!set.ok()) reading_->Fail(tree->line, PathOf(key), ": ", set.message());
}

void ConfigSection::Path(absl::string_view key, std::string* out) const {
  const ConfigTree* tree = Scalar(key, "a path");
  if (tree != nullptr) *out = AbsolutePath(*tree, key);
}

void ConfigSection::Texts(absl::string_view key,
                          std::vector<std::string>* out) const {
  const ConfigTree* tree = Find(key);
  if (tree == nullptr) return;
  const std::vector<ConfigTree> alone = {*tree};
  for (const ConfigTree& item :
       tree->kind == ConfigTree::kSequence ? tree->items : alone) {
    if (item.kind != ConfigTree::kScalar || item.scalar.empty()) {
      reading_->Fail(item.line, PathOf(key), ": want texts, one an element");
      return;
    }
    out->push_back(item.scalar);
  }
}

std::string ConfigSection::AbsolutePath(const ConfigTree& tree,
                                        absl::string_view key) const {
  if (tree.scalar.empty() || tree.scalar[0] == '~') {
    reading_->Fail(tree.line, PathOf(key), ": '", tree.scalar,
                   "', want a path, absolute or relative to this file ('~' is "
                   "not expanded)");
  }
  const std::filesystem::path base(std::string(reading_->base_dir));
  return (base / tree.scalar).lexically_normal().string();
}

const ConfigTree* ConfigSection::Scalar(absl::string_view key,
                                        absl::string_view want) const {
  const ConfigTree* tree = Find(key);
  if (tree == nullptr || tree->kind == ConfigTree::kScalar) return tree;
  reading_->Fail(tree->line, PathOf(key),
                 tree->kind == ConfigTree::kNull       ? " has no value"
                 : tree->kind == ConfigTree::kSequence ? " is a list"
                                                       : " is a map",
                 ", want ", want);
  return nullptr;
}

void ConfigSection::FailUnknown(
    const ConfigTree& key, const std::vector<absl::string_view>& known) const {
  if (!reading_->status.ok()) return;
  const std::string name = key.scalar.substr(0, 64);
  const absl::string_view nearest = NearestName(name, known);
  const std::string where = path_.empty() ? "" : absl::StrCat(" in ", path_);
  if (!nearest.empty()) {
    reading_->Fail(key.line, "unknown key '", name, "'", where,
                   ", did you mean '", nearest, "'?");
  } else {
    reading_->Fail(key.line, "unknown key '", name, "'", where,
                   ", want one of ", absl::StrJoin(known, ", "));
  }
}

}  // namespace ringfleet::cluster
