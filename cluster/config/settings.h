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
  // True: 0 is a value like others. False: 0 is the absence of one.
  bool takes_zero() const;
  // The field's key in its map of the cluster file.
  absl::string_view key() const { return field->name(); }
  // "context", "experts.slots".
  std::string name() const;
};

// Returns all settings in the order of the cluster file. A section precedes its
// fields.
const std::vector<Setting>& Settings();

// Returns the setting with this name(), which must exist.
const Setting& SettingOf(absl::string_view name);

// Returns "f32, bf16 or int8", "a whole number from 1 to 16", "true or false".
// Returns the form of the flag for a section.
std::string WantedValue(const Setting& setting);

// Returns a line for people: the phrase, the choices, the unit, and the effect
// of having no value. `none` precedes the effect: "; 0: " gives "; 0: no
// copies".
std::string SettingHelp(const Setting& setting, absl::string_view none);

// Reads `text` into `settings`. A section is read as DATAxEXPERTxTENSOR. A path
// is taken as it is.
//
// Errors: INVALID_ARGUMENT, "'TEXT', want ...".
absl::Status SetSetting(const Setting& setting, absl::string_view text,
                        v1::FleetSettings* settings);

// Returns the value as users write it; empty if it is unset, false or empty, or
// 0 and the setting does not take 0.
std::string SettingText(const Setting& setting,
                        const v1::FleetSettings& settings);

// Gives unset settings their defaults.
void FillDefaults(v1::FleetSettings* settings);
v1::FleetSettings DefaultSettings();

// Clears the settings whose change needs no restart of a fleet.
void ClearLiveSettings(v1::FleetSettings* settings);

// Returns the mesh. An unset axis counts as 1.
MeshShape MeshOf(const v1::FleetSettings& settings);
void SetMesh(const MeshShape& mesh, v1::FleetSettings* settings);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CONFIG_SETTINGS_H_
