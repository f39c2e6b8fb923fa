// SPDX-License-Identifier: Apache-2.0
// The settings of a fleet as command-line flags.
#ifndef RINGFLEET_COORDINATOR_SERVICE_SETTING_FLAGS_H_
#define RINGFLEET_COORDINATOR_SERVICE_SETTING_FLAGS_H_

#include <initializer_list>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protos/fleet_settings.pb.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ringfleet::coordinator {

// Flags as they were given. Once it has flags, an object must not move until
// the command line is parsed.
class SettingFlags {
 public:
  // Adds all flags except those of the settings named in `except`. A flag
  // excludes `by_file`, the options of a fleet that is described already,
  // unless the flag overrides a cluster file.
  void AddAll(CLI::App& app, std::initializer_list<absl::string_view> except,
              std::initializer_list<CLI::Option*> by_file);
  // Adds the flag of one setting.
  CLI::Option* Add(CLI::App& app, absl::string_view name);

  // Gives a flag the text that a command line would give it.
  void Give(absl::string_view name, std::string text);
  // Returns the text of a flag; empty if the flag was not given.
  std::string Given(absl::string_view name) const;

  // Returns the settings that were given. Others stay unset. A number that has
  // no default and was given as 0 stays unset too.
  //
  // Errors: INVALID_ARGUMENT, "usage: --dtype 'fp8', want ...".
  absl::StatusOr<v1::FleetSettings> Read() const;

 private:
  std::map<std::string, std::string> texts_;  // By the setting's name().
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_SERVICE_SETTING_FLAGS_H_
