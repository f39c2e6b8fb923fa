// SPDX-License-Identifier: Apache-2.0
// The structure of the source tree: rooms.txt lists which room may include
// which, and every #include of the product is held against it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace ringfleet {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

constexpr size_t kMaxRoomFiles = 48;
constexpr int kMaxProductLines = 600;
constexpr int kMaxTestLines = 800;

// Room -> rooms that it may include.
using Arrows = std::map<std::string, std::set<std::string>>;

struct Source {
  std::string path;  // From the root: "cluster/wire/frame.h".
  std::vector<std::string> lines;
};

std::string Room(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

// The generated header "protos/worker.pb.h" is a file of the room "protos", as
// worker.proto is.
std::string IncludedPath(const std::string& line) {
  constexpr char kStart[] = "#include \"";
  if (!absl::StartsWith(line, kStart)) return "";
  const size_t begin = sizeof(kStart) - 1;
  return line.substr(begin, line.find('"', begin) - begin);
}

std::vector<std::string> Lines(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<Source> Sources(const std::vector<std::string>& tops) {
  const fs::path root = RINGFLEET_SOURCE_DIR;
  std::vector<Source> sources;
  for (const std::string& top : tops) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".proto") {
        continue;
      }
      sources.push_back(
          {fs::relative(entry.path(), root), Lines(entry.path())});
    }
  }
  std::sort(sources.begin(), sources.end(),
            [](const Source& a, const Source& b) { return a.path < b.path; });
  return sources;
}

const std::vector<Source>& Product() {
  static const auto& sources = *new std::vector<Source>(
      Sources({"protos", "kernels", "cluster", "worker", "coordinator"}));
  return sources;
}

// Lines of rooms.txt: "room: room room", in an order in which each room comes
// behind those that it includes. "#" begins a comment.
std::string ReadArrows(const std::vector<std::string>& lines, Arrows* arrows) {
  for (const std::string& line : lines) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> sides = absl::StrSplit(line, ':');
    if (sides.size() != 2) return absl::StrCat("not ROOM: ROOMS: ", line);
    const std::vector<std::string> targets =
        absl::StrSplit(sides[1], ' ', absl::SkipEmpty());
    for (const std::string& target : targets) {
      if (!arrows->contains(target)) {
        return absl::StrCat(sides[0], " -> ", target,
                            ": a cycle, or a room that is not listed above");
      }
    }
    const bool fresh =
        arrows->emplace(sides[0], std::set(targets.begin(), targets.end()))
            .second;
    if (!fresh) return absl::StrCat(sides[0], ": listed twice");
  }
  return "";
}

Arrows TheArrows() {
  Arrows arrows;
  const std::string error = ReadArrows(
      Lines(fs::path(RINGFLEET_SOURCE_DIR) / "tests/structure/rooms.txt"),
      &arrows);
  EXPECT_EQ(error, "");
  return arrows;
}

// Returns "FILE includes INCLUDE: ..." for each include against the arrows, and
// collects the arrows that are used.
std::vector<std::string> Violations(const std::vector<Source>& sources,
                                    const Arrows& arrows, Arrows* used) {
  std::vector<std::string> violations;
  for (const Source& source : sources) {
    const std::string from = Room(source.path);
    if (!arrows.contains(from)) {
      violations.push_back(
          absl::StrCat(source.path, ": room ", from, " is not in rooms.txt"));
      continue;
    }
    for (const std::string& line : source.lines) {
      const std::string included = IncludedPath(line);
      if (included.find('/') == std::string::npos) continue;
      const std::string to = Room(included);
      // Abseil and other libraries are nobody's room.
      const std::string top = included.substr(0, included.find('/'));
      if (to == from || (!arrows.contains(to) && !arrows.contains(top) &&
                         top != "tests" && top != "perf")) {
        continue;
      }
      if (arrows.at(from).contains(to)) {
        (*used)[from].insert(to);
      } else {
        violations.push_back(absl::StrCat(source.path, " includes ", included,
                                          ": no arrow ", from, " -> ", to));
      }
    }
  }
  return violations;
}

TEST(StructureTest, IncludesFollowTheArrows) {
  Arrows used;
  EXPECT_THAT(Violations(Product(), TheArrows(), &used), IsEmpty());
}

TEST(StructureTest, EveryArrowIsUsed) {
  const Arrows arrows = TheArrows();
  Arrows used;
  Violations(Product(), arrows, &used);
  std::vector<std::string> unused;
  for (const auto& [from, targets] : arrows) {
    for (const std::string& to : targets) {
      if (!used[from].contains(to)) {
        unused.push_back(absl::StrCat(from, " -> ", to));
      }
    }
  }
  EXPECT_THAT(unused, IsEmpty());
}

TEST(StructureTest, AnIncludeAgainstTheArrowsIsNamed) {
  const Arrows arrows = {{"kernels", {}}, {"cluster/wire", {"kernels"}}};
  Arrows used;
  EXPECT_THAT(
      Violations({{"kernels/a.h", {"#include \"cluster/wire/frame.h\""}},
                  {"cluster/wire/b.h", {"#include \"kernels/a.h\""}},
                  {"cluster/new/c.h", {}}},
                 arrows, &used),
      testing::ElementsAre("kernels/a.h includes cluster/wire/frame.h: no "
                           "arrow kernels -> cluster/wire",
                           "cluster/new/c.h: room cluster/new is not in "
                           "rooms.txt"));
}

TEST(StructureTest, ACycleInTheTableIsNamed) {
  Arrows arrows;
  EXPECT_EQ(ReadArrows({"a: b", "b: a"}, &arrows),
            "a -> b: a cycle, or a room that is not listed above");
}

TEST(StructureTest, RoomsAreSmallEnough) {
  std::map<std::string, size_t> files;
  for (const Source& source : Product()) ++files[Room(source.path)];
  for (const auto& [room, count] : files) {
    EXPECT_LE(count, kMaxRoomFiles) << room;
  }
}

TEST(StructureTest, FilesAreShortEnough) {
  for (const Source& source : Product()) {
    EXPECT_LE(source.lines.size(), kMaxProductLines) << source.path;
  }
  for (const Source& source : Sources({"tests"})) {
    EXPECT_LE(source.lines.size(), kMaxTestLines) << source.path;
  }
}

// tests/cluster/wire/frame_test.cc tests cluster/wire.
TEST(StructureTest, TestsLieInTheRoomsOfWhatTheyTest) {
  const Arrows arrows = TheArrows();
  for (const Source& source :
       Sources({"tests/kernels", "tests/cluster", "tests/worker",
                "tests/coordinator"})) {
    const std::string room = Room(source.path).substr(sizeof("tests/") - 1);
    EXPECT_TRUE(arrows.contains(room)) << source.path;
  }
}

}  // namespace
}  // namespace ringfleet
