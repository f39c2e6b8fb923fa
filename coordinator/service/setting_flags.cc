// SPDX-License-Identifier: Apache-2.0
#include "coordinator/service/setting_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/config/settings.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Setting;
using google::protobuf::FieldDescriptor;

bool IsNumber(const Setting& setting) {
  const auto type = setting.field->cpp_type();
  return type == FieldDescriptor::CPPTYPE_UINT32 ||
         type == FieldDescriptor::CPPTYPE_DOUBLE;
}

// The type of a flag's value in --help.
const char* TypeName(const Setting& setting) {
  switch (setting.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return "UINT";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "FLOAT";
    default:
      return "TEXT";
  }
}

// "--ctx-size" of "-c,--ctx-size".
absl::string_view LongName(const Setting& setting) {
  const absl::string_view flag = setting.options().flag();
  return flag.substr(flag.find("--"));
}

// True for a number that is given as 0, where 0 is the absence of one.
bool IsUnset(const Setting& setting, const std::string& text) {
  double value = 1;
  return IsNumber(setting) && !setting.takes_zero() &&
         setting.options().default_value().empty() &&
         absl::SimpleAtod(text, &value) && value == 0;
}

absl::Status AtFlag(const Setting& setting, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("usage: ", LongName(setting), " ", message));
}

}  // namespace

void SettingFlags::AddAll(CLI::App& app,
                          std::initializer_list<absl::string_view> except,
                          std::initializer_list<CLI::Option*> by_file) {
  for (const Setting& setting : cluster::Settings()) {
    const std::string name = setting.name();
    if (setting.options().flag().empty() ||
        std::find(except.begin(), except.end(), name) != except.end()) {
      continue;
    }
    CLI::Option* const option = Add(app, name);
    if (setting.options().beside_file()) continue;
    for (CLI::Option* const file : by_file) option->excludes(file);
  }
}

CLI::Option* SettingFlags::Add(CLI::App& app, absl::string_view name) {
  const Setting& setting = cluster::SettingOf(name);
  const v1::SettingOptions& options = setting.options();
  std::string* const text = &texts_[setting.name()];
  std::string help = cluster::SettingHelp(
      setting,
      IsNumber(setting) && !setting.takes_zero() ? "; 0: " : "; default: ");
  if (setting.is_section()) {
    absl::StrAppend(&help, "; ", WantedValue(setting));
  }
  if (setting.field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    return app.add_flag_callback(
        options.flag(), [text] { *text = "true"; }, help);
  }
  CLI::Option* const option = app.add_option(options.flag(), *text, help);
  option->type_name(TypeName(setting));
  if (!options.default_value().empty()) {
    option->default_str(options.default_value());
  }
  return option;
}

void SettingFlags::Give(absl::string_view name, std::string text) {
  texts_[std::string(name)] = std::move(text);
}

std::string SettingFlags::Given(absl::string_view name) const {
  const auto it = texts_.find(std::string(name));
  return it == texts_.end() ? "" : it->second;
}

absl::StatusOr<v1::FleetSettings> SettingFlags::Read() const {
  v1::FleetSettings settings;
  for (const Setting& setting : cluster::Settings()) {
    const std::string text = Given(setting.name());
    if (text.empty() || IsUnset(setting, text)) continue;
    const absl::Status encoded = CheckUtf8(text);
    if (!encoded.ok()) {
      return AtFlag(setting, absl::StrCat("'", absl::CHexEscape(text),
                                          "': ", encoded.message()));
    }
    const absl::Status set = cluster::SetSetting(setting, text, &settings);
    if (!set.ok()) return AtFlag(setting, set.message());
  }
  return settings;
}

}  // namespace ringfleet::coordinator
