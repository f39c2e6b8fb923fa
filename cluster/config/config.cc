// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/config/config_section.h"
#include "cluster/config/config_tree.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

constexpr absl::string_view kNameCharacters = "._-";
constexpr int kMaxPort = 65535;
constexpr double kMaxRequestTimeout = 24 * 60 * 60;  // Seconds.

void CheckReachable(ConfigReading* reading, int line, absl::string_view what,
                    absl::string_view address, SecurityMode mode) {
  if (IsWildcard(address)) {
    reading->Fail(line, what, ": ", address,
                  " is no address that others can dial, want the host's own");
  } else if (mode == SecurityMode::kLoopback && !IsLoopback(address)) {
    reading->Fail(line, what, ": ", address,
                  " is not a loopback address, want one, or 'security: {mode: "
                  "insecure}' to listen there unprotected");
  }
}

void ReadWorkers(ConfigReading* reading, const ConfigSection& top,
                 ClusterConfig* config) {
  const ConfigTree* list = top.Find("workers");
  if (list == nullptr || list->kind != ConfigTree::kSequence ||
      list->items.empty() || list->items.size() > kMaxWorkers) {
    reading->Fail(top.LineOf("workers"), "workers: ",
                  list == nullptr ? "missing"
                  : list->kind != ConfigTree::kSequence
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
    const ConfigSection section(reading, &list->items[rank], path,
                                {"host", "port", "address", "threads",
                                 "numa_node", "memory_gib", "read_gbps"});
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
      const std::string address = FormatAddress({worker.address, worker.port});
      const auto [first, is_new] =
          taken.try_emplace(address, path, section.line());
      if (!is_new) {
        reading->Fail(section.line(), path, " listens on ", address,
                      " as does ", first->second.first, " on line ",
                      first->second.second, ", want another port or address");
      }
    }
    config->workers.push_back(std::move(worker));
  }
}

// Chooses the axes that are `auto`, and checks that the mesh covers the
// workers.
void ResolveMesh(ConfigReading* reading, int line, int world,
                 v1::FleetSettings* settings) {
  if (!reading->status.ok()) return;
  const v1::MeshSettings& mesh = settings->mesh();
  int expert = static_cast<int>(mesh.expert());
  int tensor = static_cast<int>(mesh.tensor());
  // Few sequences decode fastest when every rank reads a slice of every
  // expert and of every head, so what is free goes to the tensor axis.
  const int data = mesh.has_data() ? static_cast<int>(mesh.data()) : 1;
  const int group = std::max(1, world / data);
  if (expert == 0) expert = tensor == 0 ? 1 : std::max(1, group / tensor);
  if (tensor == 0) tensor = std::max(1, group / expert);
  if (data * expert * tensor != world) {
    reading->Fail(line, "mesh: data ", data, " x expert ", expert, " x tensor ",
                  tensor, " is ", data * expert * tensor, " ranks, want the ",
                  world, " workers of this file");
  }
  SetMesh({.data = data, .expert = expert, .tensor = tensor}, settings);
}

// Keys of a section of FleetSettings, or of its top: those in the file.
std::vector<absl::string_view> KeysOf(
    const google::protobuf::FieldDescriptor* section) {
  std::vector<absl::string_view> keys;
  for (const Setting& setting : Settings()) {
    if (setting.section == section && !setting.options().flag_only()) {
      keys.push_back(setting.key());
    }
  }
  return keys;
}

void ReadSettings(ConfigReading* reading, const ConfigSection& top,
                  v1::FleetSettings* out) {
  ConfigSection section = top;
  for (const Setting& setting : Settings()) {
    if (setting.options().flag_only()) continue;
    if (setting.is_section()) {
      section = ConfigSection(reading, top.Find(setting.key()), setting.name(),
                              KeysOf(setting.field));
    } else {
      (setting.section == nullptr ? top : section).Value(setting, out);
    }
  }
  FillDefaults(out);
}

void ReadSsh(ConfigReading* reading, const ConfigSection& top,
             ClusterConfig* config) {
  const ConfigTree* tree = top.Find("ssh");
  if (tree == nullptr) return;
  config->ssh.emplace();
  if (tree->kind == ConfigTree::kNull)
    return;  // "ssh:" alone: use it as it is.
  const ConfigSection section(reading, tree, "ssh",
                              {"user", "port", "options"});
  section.Word("user", kNameCharacters, &config->ssh->user);
  section.Integer("port", 1, kMaxPort, &config->ssh->port);
  const ConfigTree* options = section.Find("options");
  if (options == nullptr) return;
  if (options->kind == ConfigTree::kScalar) {
    config->ssh->options =
        absl::StrSplit(options->scalar, ' ', absl::SkipWhitespace());
    return;
  }
  for (const ConfigTree& option : options->items) {
    if (options->kind != ConfigTree::kSequence ||
        option.kind != ConfigTree::kScalar || option.scalar.empty()) {
      reading->Fail(option.line,
                    "ssh.options: want one line of arguments, or a list of "
                    "single arguments");
      return;
    }
    config->ssh->options.push_back(option.scalar);
  }
}

void ReadHttp(ConfigReading* reading, const ConfigSection& top,
              ClusterConfig* config) {
  if (top.Find("http") == nullptr) return;
  HttpConfig& http = config->http.emplace();
  const ConfigSection section(reading, top.Find("http"), "http",
                              {"host", "port", "alias", "api_key_file", "tls",
                               "cors_origins", "request_timeout_s"});
  section.Host("host", &http.host);
  section.Integer("port", 1, kMaxPort, &http.port);
  section.Text("alias", &http.alias);
  section.Path("api_key_file", &http.api_key_file);
  section.Texts("cors_origins", &http.cors_origins);
  section.Number("request_timeout_s", kMaxRequestTimeout,
                 &http.request_timeout_s);
  const ConfigTree* const tls_tree = section.Find("tls");
  const ConfigSection tls(reading, tls_tree, "http.tls",
                          {"cert", "key", "client_ca"});
  tls.Path("cert", &http.tls_cert);
  tls.Path("key", &http.tls_key);
  tls.Path("client_ca", &http.tls_client_ca);
  if (tls_tree != nullptr && (http.tls_cert.empty() || http.tls_key.empty())) {
    reading->Fail(tls.line(), "http.tls: want both cert and key");
  }
  if (config->security == SecurityMode::kLoopback && !IsLoopback(http.host) &&
      (http.tls_cert.empty() || http.api_key_file.empty())) {
    reading->Fail(section.LineOf("host"), "http.host: ", http.host,
                  " is not a loopback address, want one, or tls and "
                  "api_key_file, or 'security: {mode: insecure}' to listen "
                  "there unprotected");
  }
  if (http.port == config->coordinator.port) {
    reading->Fail(section.LineOf("port"), "http.port: ", http.port,
                  " is the coordinator's, want another");
  }
}

}  // namespace

absl::StatusOr<ClusterConfig> ParseClusterConfig(absl::string_view yaml,
                                                 absl::string_view file_name,
                                                 absl::string_view base_dir) {
  RF_ASSIGN_OR_RETURN(const ConfigTree root, ParseConfigTree(yaml, file_name));
  ConfigReading reading{.file = file_name, .base_dir = base_dir};
  ClusterConfig config;
  std::vector<absl::string_view> keys = KeysOf(/*section=*/nullptr);
  keys.insert(keys.begin(), "name");
  keys.insert(keys.end(),
              {"coordinator", "http", "workers", "ssh", "security"});
  const ConfigSection top(&reading, &root, "", keys);

  config.name = std::filesystem::path(std::string(file_name)).stem().string();
  for (char& c : config.name) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains(kNameCharacters, c)) {
      c = '-';
    }
  }
  if (config.name.empty() || config.name[0] == '-') config.name = "fleet";
  top.Word("name", kNameCharacters, &config.name);
  ReadSettings(&reading, top, &config.settings);

  const ConfigSection security(&reading, top.Find("security"), "security",
                               {"mode"});
  std::string mode = "loopback";
  security.Text("mode", &mode);
  if (mode == "insecure") {
    config.security = SecurityMode::kInsecure;
  } else if (mode != "loopback") {
    reading.Fail(security.LineOf("mode"), "security.mode: '", mode,
                 "', want loopback or insecure");
  }

  const ConfigSection coordinator(&reading, top.Find("coordinator"),
                                  "coordinator", {"host", "port", "http_port"});
  if (coordinator.Find("http_port") != nullptr) {
    reading.Fail(coordinator.LineOf("http_port"),
                 "coordinator.http_port: no longer a key, want http: {port: "
                 "8080}");
  }
  coordinator.Host("host", &config.coordinator.host);
  coordinator.Integer("port", 1, kMaxPort, &config.coordinator.port);
  CheckReachable(&reading, coordinator.LineOf("host"), "coordinator.host",
                 config.coordinator.host, config.security);

  ReadHttp(&reading, top, &config);
  ReadWorkers(&reading, top, &config);
  const ConfigTree* const mesh = top.Find("mesh");
  ResolveMesh(&reading, mesh == nullptr ? 1 : mesh->line,
              static_cast<int>(config.workers.size()), &config.settings);
  ReadSsh(&reading, top, &config);
  if (!reading.status.ok()) return reading.status;
  return config;
}

absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute =
      std::filesystem::absolute(path, error).lexically_normal();
  if (!std::filesystem::is_regular_file(absolute, error)) {
    return absl::NotFoundError(absl::StrCat(
        "cluster file: ", path,
        std::filesystem::exists(absolute, error) ? ": is not a regular file"
                                                 : ": no such file"));
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
  config->path = absolute.string();
  return config;
}

}  // namespace ringfleet::cluster
