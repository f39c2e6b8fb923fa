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
  // Reads a word that is fit for a path or a command line: letters, digits and
  // the characters of `extra`, not starting with '-'.
  void Word(absl::string_view key, absl::string_view extra,
            std::string* out) const;
  // Reads a host name or an address that is fit for a socket and for ssh's
  // command line.
  void Host(absl::string_view key, std::string* out) const;
  // Reads a path, which counts from the file's folder.
  void Path(absl::string_view key, std::string* out) const;
  // Reads a list of texts that are not empty, or one text.
  void Texts(absl::string_view key, std::vector<std::string>* out) const;
  void Integer(absl::string_view key, int least, int most, int* out) const;
  // Reads a number above 0, at most `most`.
  void Number(absl::string_view key, double most, double* out) const;
  // Reads a setting of this section by its description.
  void Value(const Setting& setting, v1::FleetSettings* out) const;

 private:
  std::string PathOf(absl::string_view key) const;
  // Returns the key's value. Null: the key is absent, or its value is no
  // scalar, which fails.
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
