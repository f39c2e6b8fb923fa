// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/settings.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// "A, B or C".
std::string Alternatives(const v1::SettingOptions& options) {
  std::string text;
  const int size = options.choices_size();
  for (int i = 0; i < size; ++i) {
    absl::StrAppend(&text,
                    i == 0         ? ""
                    : i + 1 < size ? ", "
                                   : " or ",
                    options.choices(i));
  }
  return text;
}

// "sequence_parallel" of PrefillStrategy: PREFILL_STRATEGY_SEQUENCE_PARALLEL.
const EnumValueDescriptor& ValueOf(const FieldDescriptor& field,
                                   absl::string_view choice) {
  std::string name;
  for (const char c : field.enum_type()->name()) {
    if (absl::ascii_isupper(c) && !name.empty()) name.push_back('_');
    name.push_back(absl::ascii_toupper(c));
  }
  absl::StrAppend(
      &name, "_",
      absl::AsciiStrToUpper(absl::StrReplaceAll(choice, {{"-", "_"}})));
  const EnumValueDescriptor* const value =
      field.enum_type()->FindValueByName(name);
  RF_CHECK(value != nullptr);
  return *value;
}

std::vector<Setting> ReadDescriptions() {
  std::vector<Setting> settings;
  const auto* const fleet = v1::FleetSettings::descriptor();
  for (int i = 0; i < fleet->field_count(); ++i) {
    settings.push_back({.field = fleet->field(i)});
    if (!settings.back().is_section()) continue;
    const auto* const section = fleet->field(i)->message_type();
    for (int j = 0; j < section->field_count(); ++j) {
      settings.push_back(
          {.field = section->field(j), .section = fleet->field(i)});
    }
  }
  return settings;
}

// The message that holds the setting's field.
const Message& Holder(const Setting& setting,
                      const v1::FleetSettings& settings) {
  if (setting.section == nullptr) return settings;
  return settings.GetReflection()->GetMessage(settings, setting.section);
}
Message* MutableHolder(const Setting& setting, v1::FleetSettings* settings) {
  if (setting.section == nullptr) return settings;
  return settings->GetReflection()->MutableMessage(settings, setting.section);
}

// Reads seconds from "90", "90s" or "1h30m". False: `text` is neither.
bool ParseSeconds(absl::string_view text, uint32_t* seconds) {
  if (absl::SimpleAtoi(text, seconds)) return true;
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration)) return false;
  const int64_t whole = absl::ToInt64Seconds(duration);
  if (absl::Seconds(whole) != duration || whole < 0 ||
      whole > std::numeric_limits<uint32_t>::max()) {
    return false;
  }
  *seconds = static_cast<uint32_t>(whole);
  return true;
}

std::string DurationText(double seconds) {
  return absl::FormatDuration(absl::Seconds(seconds));
}

// False: `text` is no value of the setting.
bool SetValue(const Setting& setting, absl::string_view text, Message* holder) {
  const google::protobuf::Reflection& reflection = *holder->GetReflection();
  const v1::SettingOptions& options = setting.options();
  switch (setting.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      for (const std::string& choice : options.choices()) {
        if (choice != text) continue;
        reflection.SetEnum(holder, setting.field,
                           &ValueOf(*setting.field, choice));
        return true;
      }
      return false;
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value = 0;
      const bool parsed = options.duration() ? ParseSeconds(text, &value)
                                             : absl::SimpleAtoi(text, &value);
      if (!parsed || value < options.min() || value > options.max()) {
        return false;
      }
      reflection.SetUInt32(holder, setting.field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value) ||
          value <= options.min() || value > options.max()) {
        return false;
      }
      reflection.SetDouble(holder, setting.field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") return false;
      reflection.SetBool(holder, setting.field, text == "true");
      return true;
    default:
      reflection.SetString(holder, setting.field, std::string(text));
      return true;
  }
}

}  // namespace

const v1::SettingOptions& Setting::options() const {
  return field->options().GetExtension(v1::setting);
}

bool Setting::is_section() const {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

std::string Setting::name() const {
  return section == nullptr ? field->name()
                            : absl::StrCat(section->name(), ".", field->name());
}

bool Setting::takes_zero() const {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 &&
         options().min() == 0;
}

const std::vector<Setting>& Settings() {
  static const auto& settings = *new std::vector<Setting>(ReadDescriptions());
  return settings;
}

const Setting& SettingOf(absl::string_view name) {
  for (const Setting& setting : Settings()) {
    if (setting.name() == name) return setting;
  }
  RF_CHECK(false);
  return Settings().front();
}

std::string WantedValue(const Setting& setting) {
  const v1::SettingOptions& options = setting.options();
  switch (setting.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM:
      return Alternatives(options);
    case FieldDescriptor::CPPTYPE_UINT32:
      if (options.duration()) {
        return absl::StrCat("whole seconds from ", DurationText(options.min()),
                            " to ", DurationText(options.max()), ", ",
                            options.unit());
      }
      return absl::StrCat("a whole number from ", options.min(), " to ",
                          static_cast<uint32_t>(options.max()));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat("a number above ", options.min(), ", at most ",
                          options.max());
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "DATAxEXPERTxTENSOR as in 1x4x2";
    default:
      return options.form() == v1::SETTING_FORM_UNSPECIFIED ? "text" : "a path";
  }
}

std::string SettingHelp(const Setting& setting, absl::string_view none) {
  const v1::SettingOptions& options = setting.options();
  std::string text = options.help();
  if (options.choices_size() > 0) {
    absl::StrAppend(&text, ": ", Alternatives(options));
  }
  if (!options.unit().empty()) absl::StrAppend(&text, ", ", options.unit());
  if (!options.unset().empty()) absl::StrAppend(&text, none, options.unset());
  return text;
}

absl::Status SetSetting(const Setting& setting, absl::string_view text,
                        v1::FleetSettings* settings) {
  if (setting.is_section()) {
    RF_ASSIGN_OR_RETURN(const MeshShape mesh, ParseMesh(text));
    SetMesh(mesh, settings);
    return absl::OkStatus();
  }
  if (setting.options().takes_auto() && text == "auto") return absl::OkStatus();
  if (SetValue(setting, text, MutableHolder(setting, settings))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "', want ", WantedValue(setting)));
}

std::string SettingText(const Setting& setting,
                        const v1::FleetSettings& settings) {
  const Message& holder = Holder(setting, settings);
  const google::protobuf::Reflection& reflection = *holder.GetReflection();
  switch (setting.field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = reflection.GetEnumValue(holder, setting.field);
      for (const std::string& choice : setting.options().choices()) {
        if (ValueOf(*setting.field, choice).number() == number) return choice;
      }
      return "";
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const uint32_t value = reflection.GetUInt32(holder, setting.field);
      if (value == 0 && !(setting.takes_zero() &&
                          reflection.HasField(holder, setting.field))) {
        return "";
      }
      return setting.options().duration() ? DurationText(value)
                                          : absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const double value = reflection.GetDouble(holder, setting.field);
      return value == 0 ? "" : absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(holder, setting.field) ? "true" : "";
    default:
      return reflection.GetString(holder, setting.field);
  }
}

void FillDefaults(v1::FleetSettings* settings) {
  for (const Setting& setting : Settings()) {
    const std::string& text = setting.options().default_value();
    if (text.empty()) continue;
    Message* const holder = MutableHolder(setting, settings);
    if (holder->GetReflection()->HasField(*holder, setting.field)) continue;
    RF_CHECK(SetValue(setting, text, holder));
  }
}

v1::FleetSettings DefaultSettings() {
  v1::FleetSettings settings;
  FillDefaults(&settings);
  return settings;
}

void ClearLiveSettings(v1::FleetSettings* settings) {
  for (const Setting& setting : Settings()) {
    if (!setting.options().live()) continue;
    Message* const holder = MutableHolder(setting, settings);
    holder->GetReflection()->ClearField(holder, setting.field);
  }
}

MeshShape MeshOf(const v1::FleetSettings& settings) {
  const auto axis = [](uint32_t size) {
    return size == 0 ? 1 : static_cast<int>(size);
  };
  const v1::MeshSettings& mesh = settings.mesh();
  return {axis(mesh.data()), axis(mesh.expert()), axis(mesh.tensor())};
}

void SetMesh(const MeshShape& mesh, v1::FleetSettings* settings) {
  settings->mutable_mesh()->set_data(mesh.data);
  settings->mutable_mesh()->set_expert(mesh.expert);
  settings->mutable_mesh()->set_tensor(mesh.tensor);
}

}  // namespace ringfleet::cluster
