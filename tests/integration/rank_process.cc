// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/rank_process.h"

#include <sstream>
#include <utility>

#include "kernels/check.h"

namespace ringfleet::integration {
namespace {

Answer Parse(const std::string& line) {
  std::istringstream words(line);
  Answer answer;
  double micros = 0;
  words >> answer.kind;
  if (answer.kind == "done") {
    words >> micros;
  } else if (answer.kind == "failed") {
    double late = 0;
    words >> answer.number >> answer.code >> late >> micros;
    answer.late = late * 1e-6;
  } else if (answer.kind == "refused") {
    words >> answer.number >> answer.code >> micros;
  } else {
    words >> answer.number >> micros;
  }
  answer.at = micros * 1e-6;
  std::getline(words >> std::ws, answer.message);
  return answer;
}

}  // namespace

RankProcess::RankProcess(std::vector<std::string> command,
                         const std::string& host, const std::string& capture)
    : process_(
          {.command = std::move(command), .capture = capture, .input = true}) {
  const std::optional<Answer> port = Next(10);
  RF_CHECK(port.has_value() && port->kind == "port");
  address_ = host + ":" + std::to_string(port->number);
}

void RankProcess::Connect(uint64_t epoch, int rank,
                          const std::string& transport, int milliseconds,
                          const std::vector<std::string>& addresses) {
  std::ostringstream line;
  line << "connect " << epoch << " " << rank << " " << transport << " "
       << milliseconds;
  for (const std::string& address : addresses) line << " " << address;
  process_.Write(line.str() + "\n");
}

void RankProcess::Run(uint64_t seed, int count, int milliseconds,
                      const std::string& fault) {
  std::ostringstream line;
  line << "run " << seed << " 0 " << count << " " << milliseconds << " "
       << fault << "\n";
  process_.Write(line.str());
}

std::optional<Answer> RankProcess::Next(double seconds) {
  std::optional<Answer> answer;
  const auto look = [&] {
    const bool running = process_.Running();
    const std::string output = process_.output();
    const size_t end = output.find('\n', read_);
    if (end == std::string::npos) return !running;
    answer = Parse(output.substr(read_, end - read_));
    read_ = end + 1;
    return true;
  };
  // Counts in looks, not by the clock: a machine that was paused for a while
  // does not make a rank hang.
  constexpr double kLook = 0.02;
  for (double left = seconds; left > 0 && !answer.has_value(); left -= kLook) {
    if (testing::WaitUntil(kLook, look)) break;
  }
  return answer;
}

}  // namespace ringfleet::integration
