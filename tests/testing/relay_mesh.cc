// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/relay_mesh.h"

#include <stdlib.h>

#include <filesystem>
#include <sstream>

#include "kernels/check.h"

namespace ringfleet::testing {
namespace {

std::string NewFolder() {
  std::string path =
      (std::filesystem::temp_directory_path() / "ringfleet_relay.XXXXXX")
          .string();
  RF_CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

std::vector<std::string> Listening(const std::string& output) {
  constexpr char kWord[] = "listening ";
  std::vector<std::string> addresses;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {
    if (line.rfind(kWord, 0) == 0) {
      addresses.push_back(line.substr(sizeof(kWord) - 1));
    }
  }
  return addresses;
}

}  // namespace

RelayProcess::RelayProcess(const Options& options) : folder_(NewFolder()) {
  std::vector<std::string> command = options.launcher;
  command.push_back(RINGFLEET_DELAY_RELAY_BINARY);
  for (const RelayRoute& route : options.routes) {
    command.insert(command.end(), {"--listen", route.listen, "--to", route.to});
  }
  command.insert(
      command.end(),
      {"--delay-us", std::to_string(absl::ToInt64Microseconds(options.delay)),
       "--buffer-mib", std::to_string(options.buffer_mib)});
  process_ = std::make_unique<Process>(
      ProcessOptions{.command = command, .capture = folder_ + "/relay"});
  const bool started = WaitUntil(20, [&] {
    addresses_ = Listening(process_->output());
    return addresses_.size() == options.routes.size() || !process_->Running();
  });
  if (!started || addresses_.size() != options.routes.size()) {
    fprintf(stderr, "%s", process_->errors().c_str());
    RF_CHECK(!"the relay did not start");
  }
}

RelayProcess::~RelayProcess() {
  process_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

RelayMesh::RelayMesh(const std::vector<std::string>& addresses,
                     absl::Duration delay)
    : by_rank_(addresses.size(), addresses) {
  RelayProcess::Options options = {.delay = delay};
  for (size_t from = 0; from < addresses.size(); ++from) {
    for (size_t to = 0; to < addresses.size(); ++to) {
      if (to != from) options.routes.push_back({"127.0.0.1:0", addresses[to]});
    }
  }
  process_ = std::make_unique<RelayProcess>(options);
  auto relay = process_->addresses().begin();
  for (size_t from = 0; from < addresses.size(); ++from) {
    for (size_t to = 0; to < addresses.size(); ++to) {
      if (to != from) by_rank_[from][to] = *relay++;
    }
  }
}

}  // namespace ringfleet::testing
