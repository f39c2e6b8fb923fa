// SPDX-License-Identifier: Apache-2.0
// Writes a validated fleet as YAML, which config.cc reads.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/config/config.h"

namespace ringfleet::cluster {
namespace {

// Double-quoted YAML; values hold no control characters.
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + "\"";
}

// "KEY: VALUE" of a setting that has a value; else nothing.
std::string Entry(const Setting& setting, const v1::FleetSettings& settings) {
  const std::string text = SettingText(setting, settings);
  if (text.empty() || setting.options().flag_only()) return "";
  const bool is_text = setting.field->cpp_type() ==
                       google::protobuf::FieldDescriptor::CPPTYPE_STRING;
  return absl::StrCat(setting.key(), ": ", is_text ? Quoted(text) : text);
}

// A line for each setting at the top, and one for each section.
std::string FormatSettings(const v1::FleetSettings& settings) {
  std::string out;
  for (const Setting& setting : Settings()) {
    if (setting.section != nullptr) continue;
    if (!setting.is_section()) {
      const std::string entry = Entry(setting, settings);
      if (!entry.empty()) absl::StrAppend(&out, entry, "\n");
      continue;
    }
    std::vector<std::string> entries;
    for (const Setting& inner : Settings()) {
      if (inner.section != setting.field) continue;
      std::string entry = Entry(inner, settings);
      if (!entry.empty()) entries.push_back(std::move(entry));
    }
    if (entries.empty()) continue;
    absl::StrAppend(&out, setting.key(), ": {", absl::StrJoin(entries, ", "),
                    "}\n");
  }
  return out;
}

std::string QuotedList(const std::vector<std::string>& texts) {
  return absl::StrCat(
      "[",
      absl::StrJoin(texts, ", ",
                    [](std::string* to, const std::string& text) {
                      absl::StrAppend(to, Quoted(text));
                    }),
      "]");
}

std::string FormatHttp(const HttpConfig& http) {
  std::string out =
      absl::StrCat("http: {host: ", Quoted(http.host), ", port: ", http.port);
  const auto add = [&out](absl::string_view key, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&out, ", ", key, ": ", Quoted(value));
  };
  add("alias", http.alias);
  add("api_key_file", http.api_key_file);
  if (!http.tls_cert.empty()) {
    absl::StrAppend(&out, ", tls: {cert: ", Quoted(http.tls_cert),
                    ", key: ", Quoted(http.tls_key));
    add("client_ca", http.tls_client_ca);
    out += "}";
  }
  if (!http.cors_origins.empty()) {
    absl::StrAppend(&out, ", cors_origins: ", QuotedList(http.cors_origins));
  }
  if (http.request_timeout_s > 0) {
    absl::StrAppend(&out, ", request_timeout_s: ", http.request_timeout_s);
  }
  return out + "}\n";
}

}  // namespace

std::string FormatClusterConfig(const ClusterConfig& config) {
  std::string out = absl::StrCat("name: ", Quoted(config.name), "\n",
                                 FormatSettings(config.settings));
  absl::StrAppend(&out, "coordinator: {host: ", Quoted(config.coordinator.host),
                  ", port: ", config.coordinator.port, "}\n");
  if (config.http.has_value()) out += FormatHttp(*config.http);
  out += "workers:\n";
  for (const WorkerConfig& worker : config.workers) {
    absl::StrAppend(&out, "  - {host: ", Quoted(worker.host),
                    ", address: ", Quoted(worker.address),
                    ", port: ", worker.port);
    if (worker.threads > 0)
      absl::StrAppend(&out, ", threads: ", worker.threads);
    if (worker.numa_node >= 0) {
      absl::StrAppend(&out, ", numa_node: ", worker.numa_node);
    }
    if (worker.memory_gib > 0) {
      absl::StrAppend(&out, ", memory_gib: ", worker.memory_gib);
    }
    if (worker.read_gbps > 0) {
      absl::StrAppend(&out, ", read_gbps: ", worker.read_gbps);
    }
    absl::StrAppend(&out, "}\n");
  }
  if (config.ssh.has_value()) {
    absl::StrAppend(&out, "ssh:\n");
    if (!config.ssh->user.empty()) {
      absl::StrAppend(&out, "  user: ", Quoted(config.ssh->user), "\n");
    }
    if (config.ssh->port > 0) {
      absl::StrAppend(&out, "  port: ", config.ssh->port, "\n");
    }
    if (!config.ssh->options.empty()) {
      absl::StrAppend(&out, "  options: ", QuotedList(config.ssh->options),
                      "\n");
    }
  }
  absl::StrAppend(
      &out, "security: {mode: ",
      config.security == SecurityMode::kInsecure ? "insecure" : "loopback",
      "}\n");
  return out;
}

}  // namespace ringfleet::cluster
