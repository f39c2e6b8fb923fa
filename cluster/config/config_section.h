// SPDX-License-Identifier: Apache-2.0
// Typed values of one map of the cluster file. The first problem that any
// section of a file meets becomes the file's status, "FILE:LINE: ...".
#ifndef RINGFLEET_CLUSTER_CONFIG_CONFIG_SECTION_H_
#define RINGFLEET_CLUSTER_CONFIG_CONFIG_SECTION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cluster/config/config_tree.h"
#include "cluster/config/settings.h"

namespace ringfleet::cluster {

// The file being read, and the first problem found in it.
struct ConfigReading {
  absl::string_view file;
  absl::string_view base_dir;  // Absolute; relative paths count from it.
  absl::Status status;

  template <typename... Parts>
  void Fail(int line, const Parts&... parts) {
    if (!status.ok()) return;
    status = absl::InvalidArgumentError(
        absl::StrCat(file, ":", line, ": ", parts...));
  }
};

// One map of the file. Reading an absent key leaves the value as it is.
class ConfigSection {
 public:
  // `path` is "workers[0]", or "" at the top. A null `tree` is an absent map.
  // Fails for a tree that is no map, an unknown key and a key given twice.
  // `reading` and `tree` outlive the section.
  ConfigSection(ConfigReading* reading, const ConfigTree* tree,
                std::string path, const std::vector<absl::string_view>& known);

  const ConfigTree* Find(absl::string_view key) const;
  int line() const { return tree_ == nullptr ? 1 : tree_->line; }
  int LineOf(absl::string_view key) const;

  // Each reader fails, with the key's line and path, for a value of another
  // type or outside the named limits.
  void Text(absl::string_view key, std::string* out) const;
  // Letters, digits and the characters of `extra`, not starting with '-': fit
  // for a path or a command line.
  void Word(absl::string_view key, absl::string_view extra,
            std::string* out) const;
  // A host name or an address, fit for a socket and for ssh's command line.
  void Host(absl::string_view key, std::string* out) const;
  void Integer(absl::string_view key, int least, int most, int* out) const;
  // A number above 0.
  void Number(absl::string_view key, double most, double* out) const;
  // A setting of this section, by its description.
  void Value(const Setting& setting, v1::FleetSettings* out) const;

 private:
  std::string PathOf(absl::string_view key) const;
  // The key's value if it is there and a scalar.
  const ConfigTree* Scalar(absl::string_view key, absl::string_view want) const;
  // Makes a path absolute; fails for '~'.
  std::string AbsolutePath(const ConfigTree& tree, absl::string_view key) const;
  void FailUnknown(const ConfigTree& key,
                   const std::vector<absl::string_view>& known) const;

  ConfigReading* reading_;
  const ConfigTree* tree_;  // Null: absent or unusable.
  std::string path_;
};

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CONFIG_CONFIG_SECTION_H_
