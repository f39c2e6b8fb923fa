// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <map>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "cluster/collectives/algorithm_table.h"
#include "cluster/config/config_tree.h"
#include "cluster/model/dtype_names.h"
#include "cluster/model/prefill_strategy.h"
#include "cluster/placement/placement.h"
#include "cluster/process/status_macros.h"
#include "cluster/synthetic/synthetic_model.h"
#include "cluster/transport/transport_kind.h"

namespace ringfleet::cluster {
namespace {

using Tree = ConfigTree;

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The file being read, and the first thing found wrong with it.
struct Reading {
  absl::string_view file;
  absl::string_view base_dir;
  absl::Status status;

  template <typename... Parts>
  void Fail(int line, const Parts&... parts) {
    if (!status.ok()) return;
    status = absl::InvalidArgumentError(
        absl::StrCat(file, ":", line, ": ", parts...));
  }
};

bool Contains(absl::Span<const absl::string_view> keys, absl::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// One map of the file. Reading a key that is absent leaves the default.
class Section {
 public:
  // `path` is the section's place, "workers[0]" or "" at the top.
  Section(Reading* reading, const Tree* tree, std::string path,
          std::initializer_list<absl::string_view> known)
      : reading_(*reading), tree_(tree), path_(std::move(path)) {
    if (tree_ == nullptr) return;
    if (tree_->kind != Tree::kMap) {
      reading_.Fail(tree_->line, path_.empty() ? "the file" : path_,
                    " is not a map, want keys among ",
                    absl::StrJoin(known, ", "));
      tree_ = nullptr;
      return;
    }
    std::map<absl::string_view, int> seen;
    for (const Tree& key : tree_->keys) {
      if (!Contains(known, key.scalar)) {
        FailUnknown(key, known);
        continue;
      }
      const auto [first, is_new] = seen.emplace(key.scalar, key.line);
      if (!is_new) {
        reading_.Fail(key.line, "duplicate key '", key.scalar,
                      "', first on line ", first->second);
      }
    }
  }

  const Tree* Find(absl::string_view key) const {
    if (tree_ == nullptr) return nullptr;
    for (size_t i = 0; i < tree_->keys.size(); ++i) {
      if (tree_->keys[i].scalar == key) return &tree_->items[i];
    }
    return nullptr;
  }
  int line() const { return tree_ == nullptr ? 1 : tree_->line; }
  int LineOf(absl::string_view key) const {
    const Tree* found = Find(key);
    return found == nullptr ? line() : found->line;
  }
  std::string PathOf(absl::string_view key) const {
    return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
  }

  void Text(absl::string_view key, std::string* out) const {
    const Tree* tree = Scalar(key, "text");
    if (tree != nullptr) *out = tree->scalar;
  }

  // Text of the characters given besides letters and digits, fit for a path
  // or a command line: it never starts with '-'.
  void Word(absl::string_view key, absl::string_view extra,
            std::string* out) const {
    const Tree* tree = Scalar(key, "a word");
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
      reading_.Fail(tree->line, PathOf(key), ": '", word,
                    "', want letters, digits and any of ", extra,
                    ", not starting with '-'");
    }
    *out = word;
  }

  // A host name or an address, fit for a socket and for ssh's command line.
  void Host(absl::string_view key, std::string* out) const {
    const Tree* tree = Scalar(key, "a host");
    if (tree == nullptr) return;
    if (absl::StartsWith(tree->scalar, "-") || tree->scalar.size() > 253 ||
        !ParseAddress(FormatAddress({tree->scalar, 0})).ok()) {
      reading_.Fail(tree->line, PathOf(key), ": '", tree->scalar,
                    "', want a host name or an IP address");
      return;
    }
    *out = tree->scalar;
  }

  void Integer(absl::string_view key, int least, int most, int* out) const {
    const Tree* tree = Scalar(key, "a number");
    if (tree == nullptr) return;
    int value = 0;
    if (!absl::SimpleAtoi(tree->scalar, &value) || value < least ||
        value > most) {
      reading_.Fail(tree->line, PathOf(key), ": '", tree->scalar,
                    "', want a whole number from ", least, " to ", most);
      return;
    }
    *out = value;
  }

  void Boolean(absl::string_view key, bool* out) const {
    const Tree* tree = Scalar(key, "true or false");
    if (tree == nullptr) return;
    if (tree->scalar != "true" && tree->scalar != "false") {
      reading_.Fail(tree->line, PathOf(key), ": '", tree->scalar,
                    "', want true or false");
      return;
    }
    *out = tree->scalar == "true";
  }

  void Number(absl::string_view key, double most, double* out) const {
    const Tree* tree = Scalar(key, "a number");
    if (tree == nullptr) return;
    double value = 0;
    if (!absl::SimpleAtod(tree->scalar, &value) || !std::isfinite(value) ||
        value <= 0 || value > most) {
      reading_.Fail(tree->line, PathOf(key), ": '", tree->scalar,
                    "', want a number above 0, at most ", most);
      return;
    }
    *out = value;
  }

  // A path, or the name of a synthetic model; required.
  void Model(absl::string_view key, std::string* out) const {
    const Tree* tree = Find(key);
    if (tree == nullptr) {
      reading_.Fail(line(), key, ": missing, want the checkpoint's folder");
    } else if (!IsSyntheticModel(tree->scalar)) {
      Path(key, out);
    } else if (const auto name = ParseSyntheticModel(tree->scalar); name.ok()) {
      *out = tree->scalar;
    } else {
      reading_.Fail(tree->line, key, ": ", name.status().message());
    }
  }

  // A path, made absolute.
  void Path(absl::string_view key, std::string* out) const {
    const Tree* tree = Scalar(key, "a path");
    if (tree == nullptr) return;
    if (tree->scalar.empty() || tree->scalar[0] == '~') {
      reading_.Fail(tree->line, PathOf(key), ": '", tree->scalar,
                    "', want a path, absolute or relative to this file ('~' "
                    "is not expanded)");
      return;
    }
    const std::filesystem::path base(std::string(reading_.base_dir));
    *out = (base / tree->scalar).lexically_normal().string();
  }

  // A name that `parse` (StatusOr<T> of a string) knows.
  template <typename Parse, typename T>
  void Choice(absl::string_view key, absl::string_view choices, Parse parse,
              T* out) const {
    const Tree* tree = Scalar(key, choices);
    if (tree == nullptr) return;
    const absl::StatusOr<T> value = parse(tree->scalar);
    if (value.ok()) {
      *out = *value;
    } else {
      reading_.Fail(tree->line, PathOf(key), ": '", tree->scalar, "', want ",
                    choices);
    }
  }

 private:
  const Tree* Scalar(absl::string_view key, absl::string_view want) const {
    const Tree* tree = Find(key);
    if (tree == nullptr || tree->kind == Tree::kScalar) return tree;
    reading_.Fail(tree->line, PathOf(key),
                  tree->kind == Tree::kNull       ? " has no value"
                  : tree->kind == Tree::kSequence ? " is a list"
                                                  : " is a map",
                  ", want ", want);
    return nullptr;
  }

  void FailUnknown(const Tree& key,
                   absl::Span<const absl::string_view> known) const {
    if (!reading_.status.ok()) return;
    const std::string name = key.scalar.substr(0, 64);
    size_t best = std::numeric_limits<size_t>::max();
    absl::string_view nearest;
    for (const absl::string_view candidate : known) {
      const size_t distance = EditDistance(name, candidate);
      if (distance < best) {
        best = distance;
        nearest = candidate;
      }
    }
    const std::string where = path_.empty() ? "" : absl::StrCat(" in ", path_);
    if (best <= std::max<size_t>(2, name.size() / 3)) {
      reading_.Fail(key.line, "unknown key '", name, "'", where,
                    ", did you mean '", nearest, "'?");
    } else {
      reading_.Fail(key.line, "unknown key '", name, "'", where,
                    ", want one of ", absl::StrJoin(known, ", "));
    }
  }

  Reading& reading_;
  const Tree* tree_;  // Null: absent or unusable.
  std::string path_;
};

constexpr absl::string_view kNameCharacters = "._-";
constexpr int kMaxPort = 65535;

void CheckReachable(Reading* reading, int line, absl::string_view what,
                    absl::string_view address, SecurityMode mode) {
  if (address == "0.0.0.0" || address == "::") {
    reading->Fail(line, what, ": ", address,
                  " is no address that others can dial, want the host's own");
  } else if (mode == SecurityMode::kLoopback && !IsLoopback(address)) {
    reading->Fail(line, what, ": ", address,
                  " is not a loopback address, want one, or 'security: {mode: "
                  "insecure}' to listen there unprotected");
  }
}

void ReadWorkers(Reading* reading, const Section& top, ClusterConfig* config) {
  const Tree* list = top.Find("workers");
  if (list == nullptr || list->kind != Tree::kSequence || list->items.empty() ||
      list->items.size() > kMaxWorkers) {
    reading->Fail(top.LineOf("workers"), "workers: ",
                  list == nullptr ? "missing"
                  : list->kind != Tree::kSequence
                      ? "not a list"
                      : absl::StrCat(list->items.size(), " given"),
                  ", want a list of 1 to ", kMaxWorkers);
    return;
  }
  // Where each address:port is taken, and by whom.
  std::map<std::string, std::pair<std::string, int>> taken;
  taken[FormatAddress({config->coordinator.host, config->coordinator.port})] = {
      "the coordinator", top.LineOf("coordinator")};
  for (size_t rank = 0; rank < list->items.size(); ++rank) {
    const std::string path = absl::StrCat("workers[", rank, "]");
    const Section section(reading, &list->items[rank], path,
                          {"host", "port", "address", "threads", "numa_node",
                           "memory_gib", "read_gbps"});
    WorkerConfig worker;
    section.Host("host", &worker.host);
    worker.address = worker.host;
    section.Host("address", &worker.address);
    section.Integer("port", 0, kMaxPort, &worker.port);
    section.Integer("threads", 1, 4096, &worker.threads);
    section.Integer("numa_node", 0, 1023, &worker.numa_node);
    section.Number("memory_gib", 1 << 20, &worker.memory_gib);
    section.Number("read_gbps", 1 << 20, &worker.read_gbps);
    CheckReachable(
        reading, section.LineOf(section.Find("address") ? "address" : "host"),
        absl::StrCat(path, ".", section.Find("address") ? "address" : "host"),
        worker.address, config->security);
    if (worker.port != 0) {
      const std::string place = FormatAddress({worker.address, worker.port});
      const auto [first, is_new] =
          taken.try_emplace(place, path, section.line());
      if (!is_new) {
        reading->Fail(section.line(), path, " listens on ", place, " as does ",
                      first->second.first, " on line ", first->second.second,
                      ", want another port or address");
      }
    }
    config->workers.push_back(std::move(worker));
  }
}

void ReadMesh(Reading* reading, const Section& top, ClusterConfig* config) {
  const Section section(reading, top.Find("mesh"), "mesh",
                        {"data", "expert", "tensor"});
  const int world = static_cast<int>(config->workers.size());
  const auto read = [&](absl::string_view key) {
    int size = 0;  // auto
    const Tree* tree = section.Find(key);
    if (tree != nullptr && tree->scalar != "auto") {
      section.Integer(key, 1, kMaxWorkers, &size);
    }
    return size;
  };
  int data = read("data"), expert = read("expert"), tensor = read("tensor");
  if (!reading->status.ok()) return;
  // Few sequences decode fastest when every rank reads a slice of every
  // expert and of every head, so what is free goes to the tensor axis.
  if (data == 0) data = 1;
  const int group = std::max(1, world / data);
  if (expert == 0) expert = tensor == 0 ? 1 : std::max(1, group / tensor);
  if (tensor == 0) tensor = std::max(1, group / expert);
  if (data * expert * tensor != world) {
    reading->Fail(section.line(), "mesh: data ", data, " x expert ", expert,
                  " x tensor ", tensor, " is ", data * expert * tensor,
                  " ranks, want the ", world, " workers of this file");
  }
  config->mesh = {.data = data, .expert = expert, .tensor = tensor};
}

void ReadExperts(Reading* reading, const Section& top, ExpertsConfig* experts) {
  const Section section(
      reading, top.Find("experts"), "experts",
      {"slots", "capacity", "rebalance", "interval_s", "threshold"});
  section.Number("capacity", 1 << 10, &experts->capacity);
  section.Integer("slots", 1, kMaxReplicas, &experts->slots);
  std::string rebalance = "off";
  section.Text("rebalance", &rebalance);
  int interval_s = 60;
  section.Integer("interval_s", 1, 1 << 20, &interval_s);
  section.Number("threshold", 1 << 10, &experts->threshold);
  if (rebalance == "auto") {
    experts->interval_s = interval_s;
  } else if (rebalance != "off") {
    reading->Fail(section.LineOf("rebalance"), "experts.rebalance: '",
                  rebalance, "', want auto or off");
  }
}

void ReadSsh(Reading* reading, const Section& top, ClusterConfig* config) {
  const Tree* tree = top.Find("ssh");
  if (tree == nullptr) return;
  config->ssh.emplace();
  if (tree->kind == Tree::kNull) return;  // "ssh:" alone: use it as it is.
  const Section section(reading, tree, "ssh", {"user", "port", "options"});
  section.Word("user", kNameCharacters, &config->ssh->user);
  section.Integer("port", 1, kMaxPort, &config->ssh->port);
  const Tree* options = section.Find("options");
  if (options == nullptr) return;
  if (options->kind == Tree::kScalar) {
    config->ssh->options =
        absl::StrSplit(options->scalar, ' ', absl::SkipWhitespace());
    return;
  }
  for (const Tree& option : options->items) {
    if (options->kind != Tree::kSequence || option.kind != Tree::kScalar ||
        option.scalar.empty()) {
      reading->Fail(option.line,
                    "ssh.options: want one line of arguments, or a list of "
                    "single arguments");
      return;
    }
    config->ssh->options.push_back(option.scalar);
  }
}

}  // namespace

absl::StatusOr<ClusterConfig> ParseClusterConfig(absl::string_view yaml,
                                                 absl::string_view file_name,
                                                 absl::string_view base_dir) {
  RF_ASSIGN_OR_RETURN(const Tree root, ParseConfigTree(yaml, file_name));
  Reading reading{.file = file_name, .base_dir = base_dir};
  ClusterConfig config;
  const Section top(&reading, &root, "",
                    {"name",       "model",       "dtype",
                     "cache_type", "wire",        "prefill_strategy",
                     "transport",  "collectives", "tiles",
                     "context",    "parallel",    "reference",
                     "mesh",       "experts",     "coordinator",
                     "workers",    "ssh",         "cache_dir",
                     "log_dir",    "security"});

  config.name = std::filesystem::path(std::string(file_name)).stem().string();
  for (char& c : config.name) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains(kNameCharacters, c)) {
      c = '-';
    }
  }
  if (config.name.empty() || config.name[0] == '-') config.name = "fleet";
  top.Word("name", kNameCharacters, &config.name);
  top.Model("model", &config.model);
  top.Choice("dtype", kWeightDtypeChoices, ParseWeightDtype, &config.dtype);
  top.Choice("cache_type", kCacheDtypeChoices, ParseCacheDtype,
             &config.cache_dtype);
  top.Choice("wire", "f32, bf16 or int8", ParseWire, &config.wire);
  top.Choice("prefill_strategy", kPrefillStrategyChoices, ParsePrefillStrategy,
             &config.prefill_strategy);
  top.Choice("transport", kTransportChoices, ParseTransport, &config.transport);
  top.Path("collectives", &config.collectives);
  top.Path("tiles", &config.tiles);
  top.Integer("context", 1, 1 << 24, &config.context);
  top.Integer("parallel", 1, kMaxParallel, &config.parallel);
  top.Boolean("reference", &config.reference);
  top.Path("cache_dir", &config.cache_dir);
  top.Path("log_dir", &config.log_dir);

  const Section security(&reading, top.Find("security"), "security", {"mode"});
  std::string mode = "loopback";
  security.Text("mode", &mode);
  if (mode == "insecure") {
    config.security = SecurityMode::kInsecure;
  } else if (mode != "loopback") {
    reading.Fail(security.LineOf("mode"), "security.mode: '", mode,
                 "', want loopback or insecure");
  }

  const Section coordinator(&reading, top.Find("coordinator"), "coordinator",
                            {"host", "port", "http_port"});
  coordinator.Host("host", &config.coordinator.host);
  coordinator.Integer("port", 1, kMaxPort, &config.coordinator.port);
  coordinator.Integer("http_port", 1, kMaxPort, &config.coordinator.http_port);
  CheckReachable(&reading, coordinator.LineOf("host"), "coordinator.host",
                 config.coordinator.host, config.security);

  ReadWorkers(&reading, top, &config);
  ReadMesh(&reading, top, &config);
  ReadExperts(&reading, top, &config.experts);
  ReadSsh(&reading, top, &config);
  if (!reading.status.ok()) return reading.status;
  return config;
}

absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute =
      std::filesystem::absolute(path, error).lexically_normal();
  if (!std::filesystem::is_regular_file(absolute, error)) {
    return absl::NotFoundError(
        absl::StrCat("cluster file: ", path, ": no such file"));
  }
  std::ifstream in(absolute, std::ios::binary);
  std::string yaml(kMaxConfigFileBytes + 1, '\0');
  in.read(yaml.data(), static_cast<std::streamsize>(yaml.size()));
  if (in.bad() || (in.fail() && !in.eof())) {
    return absl::InvalidArgumentError(
        absl::StrCat("cluster file: ", path, ": cannot be read"));
  }
  yaml.resize(static_cast<size_t>(in.gcount()));
  absl::StatusOr<ClusterConfig> config =
      ParseClusterConfig(yaml, path, absolute.parent_path().string());
  if (!config.ok()) return Annotate(config.status(), "cluster file");
  return config;
}

}  // namespace ringfleet::cluster
