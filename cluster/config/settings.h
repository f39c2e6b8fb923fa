// SPDX-License-Identifier: Apache-2.0
// The settings of a fleet as a list, read from the field options of
// protos/fleet_settings.proto. Flags, the cluster file, help texts and
// comparisons go through this list, so that a setting is declared once.
#ifndef RINGFLEET_CLUSTER_CONFIG_SETTINGS_H_
#define RINGFLEET_CLUSTER_CONFIG_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/model/mesh.h"
#include "protos/fleet_settings.pb.h"

namespace ringfleet::cluster {

// A value of FleetSettings, or a section whose fields are settings.
struct Setting {
  const google::protobuf::FieldDescriptor* field = nullptr;
  // The section's field in FleetSettings; null: `field` is there itself.
  const google::protobuf::FieldDescriptor* section = nullptr;

  const v1::SettingOptions& options() const;
  bool is_section() const;
  // The field's key in its map of the cluster file.
  absl::string_view key() const { return field->name(); }
  // "context", "experts.slots".
  std::string name() const;
};

// All settings in the order of the cluster file; a section precedes its fields.
const std::vector<Setting>& Settings();

// The setting of a name(), which must exist.
const Setting& SettingOf(absl::string_view name);

// "f32, bf16 or int8", "a whole number from 1 to 16", "true or false". For a
// section, the form of its flag.
std::string WantedValue(const Setting& setting);

// A line for people: the phrase, the choices, the unit, and `none` before what
// holds without a value, as in "; 0: no copies".
std::string SettingHelp(const Setting& setting, absl::string_view none);

// Reads `text` into `settings`. A section is read as DATAxEXPERTxTENSOR. A path
// is taken as it is.
//
// Errors: INVALID_ARGUMENT, "'TEXT', want ...".
absl::Status SetSetting(const Setting& setting, absl::string_view text,
                        v1::FleetSettings* settings);

// The value as users write it; empty if it is unset, 0, false or empty.
std::string SettingText(const Setting& setting,
                        const v1::FleetSettings& settings);

// Gives unset settings their defaults.
void FillDefaults(v1::FleetSettings* settings);
v1::FleetSettings DefaultSettings();

// Clears the settings in which a fleet that runs may differ from its file.
void ClearLiveSettings(v1::FleetSettings* settings);

// An axis that is unset counts as 1.
MeshShape MeshOf(const v1::FleetSettings& settings);
void SetMesh(const MeshShape& mesh, v1::FleetSettings* settings);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CONFIG_SETTINGS_H_
