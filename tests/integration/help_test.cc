// SPDX-License-Identifier: Apache-2.0
// What help texts and documents tell a reader to type.
#include <filesystem>
#include <map>
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

// What there is to read, by its path from the repository's root; nothing that a
// build or git has put there.
std::map<std::string, std::string> Documents() {
  namespace fs = std::filesystem;
  const fs::path source = RINGFLEET_SOURCE_DIR;
  std::map<std::string, std::string> texts;
  for (auto it = fs::recursive_directory_iterator(source);
       it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory() && (name.starts_with("build") || name[0] == '.')) {
      it.disable_recursion_pending();
    } else if (it->path().extension() == ".md") {
      texts[it->path().lexically_relative(source).string()] =
          testing::ReadFile(it->path().string());
    }
  }
  return texts;
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
  texts.merge(Documents());
  ASSERT_THAT(VerbsIn(texts["README.md"]), Not(IsEmpty()));
  for (const auto& [name, text] : texts) {
    for (const std::string& verb : VerbsIn(text)) {
      EXPECT_THAT(verbs, Contains(verb)) << "in " << name;
    }
  }
}

TEST_F(HelpTest, HelpIsAWordToo) {
  EXPECT_EQ(Cli({"help"}).output, Cli({"--help"}).output);
  const Finished verb = Cli({"help", "plan"});
  EXPECT_EQ(verb.code, 0);
  EXPECT_EQ(verb.output, Cli({"plan", "--help"}).output);
  EXPECT_THAT(Cli({"help", "frob"}).error_line(),
              HasSubstr("unknown verb 'frob'"));
}

TEST(DocumentsTest, LinksLeadToFiles) {
  static const std::regex link(R"(\]\(([^):#]+)[^):]*\))");
  const std::filesystem::path source = RINGFLEET_SOURCE_DIR;
  int links = 0;
  for (const auto& [name, text] : Documents()) {
    for (std::sregex_iterator it(text.begin(), text.end(), link), end;
         it != end; ++it, ++links) {
      const auto target = (source / name).parent_path() / std::string((*it)[1]);
      EXPECT_TRUE(std::filesystem::exists(target))
          << (*it)[0] << " in " << name;
    }
  }
  EXPECT_GT(links, 20);
}

}  // namespace
}  // namespace ringfleet::integration
