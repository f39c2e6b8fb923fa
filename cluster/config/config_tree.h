// SPDX-License-Identifier: Apache-2.0
// YAML as a tree in which every node knows its line, for messages. Parser
// events build the tree, not YAML::Node: events keep the line of every key and
// show duplicate keys. Anchors and aliases are refused before anything is
// expanded, because they can expand a small file without bound.
#ifndef RINGFLEET_CLUSTER_CONFIG_CONFIG_TREE_H_
#define RINGFLEET_CLUSTER_CONFIG_CONFIG_TREE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::cluster {

// Largest cluster file. A description of 16 hosts takes 2 KiB.
inline constexpr size_t kMaxConfigFileBytes = size_t{1} << 20;

struct ConfigTree {
  enum Kind { kNull, kScalar, kSequence, kMap } kind = kNull;
  int line = 1;
  std::string scalar;
  std::vector<ConfigTree> keys;   // Scalars of a map; keys[i] names items[i].
  std::vector<ConfigTree> items;  // Values of a map or a sequence.
};

// Parses the one document of a file. `file` names the file in messages.
// INVALID_ARGUMENT, with the line: the text is not YAML, is empty, has several
// documents, is too deep or too large.
absl::StatusOr<ConfigTree> ParseConfigTree(absl::string_view yaml,
                                           absl::string_view file);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_CONFIG_CONFIG_TREE_H_
