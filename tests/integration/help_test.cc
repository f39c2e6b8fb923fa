// SPDX-License-Identifier: Apache-2.0
// What help texts and documents tell a reader to type.
#include <regex>
#include <set>
#include <sstream>

#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

// Verbs in examples: an indented line or a quotation that starts like this.
std::set<std::string> VerbsIn(const std::string& text) {
  static const std::regex example("(?:^ {2,}|`)ringfleet ([a-z]+)");
  std::set<std::string> verbs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    for (std::sregex_iterator it(line.begin(), line.end(), example), end;
         it != end; ++it) {
      verbs.insert((*it)[1]);
    }
  }
  return verbs;
}

class HelpTest : public FleetTest {
 protected:
  // The verbs that `ringfleet --help` lists: "  up      Start a fleet ...".
  std::set<std::string> Verbs() {
    const std::string help = Cli({"--help"}).output;
    static const std::regex entry("^  ([a-z]+) {2,}[A-Z]");
    std::set<std::string> verbs;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_search(line, match, entry)) verbs.insert(match[1]);
    }
    return verbs;
  }
};

TEST_F(HelpTest, EveryVerbOfAnExampleExists) {
  const std::set<std::string> verbs = Verbs();
  ASSERT_THAT(verbs, Contains("generate"));
  std::map<std::string, std::string> texts = {
      {"ringfleet --help", Cli({"--help"}).output},
      {"ringfleet-worker --help",
       Run(RINGFLEET_WORKER_BINARY, {"--help"}).output},
      {"ringfleet-coordinator --help",
       Run(RINGFLEET_COORDINATOR_BINARY, {"--help"}).output}};
  for (const std::string& verb : verbs) {
    texts[verb + " --help"] = Cli({verb, "--help"}).output;
  }
  for (const char* name : {"README.md", "CONTRIBUTING.md", "tests/README.md",
                           "cluster/launch/README.md", "perf/README.md"}) {
    texts[name] =
        testing::ReadFile(std::string(RINGFLEET_SOURCE_DIR) + "/" + name);
  }
  ASSERT_THAT(VerbsIn(texts["README.md"]), Not(IsEmpty()));
  for (const auto& [name, text] : texts) {
    for (const std::string& verb : VerbsIn(text)) {
      EXPECT_THAT(verbs, Contains(verb)) << "in " << name;
    }
  }
}

}  // namespace
}  // namespace ringfleet::integration
