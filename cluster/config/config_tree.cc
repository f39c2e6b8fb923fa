// SPDX-License-Identifier: Apache-2.0
#include "cluster/config/config_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

// The deepest legal value is an element of ssh.options, at depth 3.
constexpr size_t kMaxDepth = 8;

// Returns true if `text`, which begins with a quote, has the closing one too.
bool IsClosed(absl::string_view text) {
  const char quote = text[0];
  for (size_t i = 1; i < text.size(); ++i) {
    const bool doubled = quote == '\'' && text.substr(i, 2) == "''";
    if (doubled || (quote == '"' && text[i] == '\\')) {
      ++i;
    } else if (text[i] == quote) {
      return true;
    }
  }
  return false;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  // `yaml` outlives the builder.
  explicit TreeBuilder(absl::string_view yaml) : yaml_(yaml) {}

  ConfigTree root;

  void OnDocumentStart(const YAML::Mark& mark) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    throw YAML::ParserException(
        mark, absl::StrCat("anchor '&", name, "' is not supported here"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw YAML::ParserException(mark, "aliases are not supported here");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    Add(mark, {.kind = ConfigTree::kNull});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    CheckTag(mark, tag);
    // yaml-cpp takes the end of the file for the closing quote.
    const absl::string_view text =
        yaml_.substr(std::min<size_t>(std::max(mark.pos, 0), yaml_.size()));
    if (tag == "!" && !text.empty() && (text[0] == '"' || text[0] == '\'') &&
        !IsClosed(text)) {
      throw YAML::ParserException(mark, "the quote is not closed");
    }
    if (std::any_of(value.begin(), value.end(), absl::ascii_iscntrl)) {
      throw YAML::ParserException(mark, "value holds a control character");
    }
    // Plain "~" and "null" come as OnNull or as scalars, by position.
    if (tag == "?" && (value == "~" || value == "null")) {
      return OnNull(mark, 0);
    }
    Add(mark, {.kind = ConfigTree::kScalar, .scalar = value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag,
                       YAML::anchor_t, YAML::EmitterStyle::value) override {
    CheckTag(mark, tag);
    Open(mark, {.kind = ConfigTree::kSequence});
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag,
                  YAML::anchor_t, YAML::EmitterStyle::value) override {
    CheckTag(mark, tag);
    Open(mark, {.kind = ConfigTree::kMap});
  }
  void OnMapEnd() override { Close(); }

 private:
  static void CheckTag(const YAML::Mark& mark, const std::string& tag) {
    // "?" is a plain value, "!" a quoted one.
    if (tag.empty() || tag == "?" || tag == "!") return;
    throw YAML::ParserException(
        mark, absl::StrCat("tag '", tag, "' is not supported here"));
  }

  void Add(const YAML::Mark& mark, ConfigTree tree) {
    // An omitted value has no place of its own: it gets its key's line.
    tree.line = mark.line >= 0 ? mark.line + 1 : 0;
    if (open_.empty()) {
      root = std::move(tree);
      return;
    }
    ConfigTree& parent = open_.back();
    if (parent.kind == ConfigTree::kMap &&
        parent.keys.size() == parent.items.size()) {
      if (tree.kind != ConfigTree::kScalar) {
        throw YAML::ParserException(mark, "a key must be a plain word");
      }
      parent.keys.push_back(std::move(tree));
      return;
    }
    if (tree.line == 0 || tree.kind == ConfigTree::kNull) {
      tree.line = parent.kind == ConfigTree::kMap
                      ? parent.keys.back().line
                      : std::max(tree.line, parent.line);
    }
    parent.items.push_back(std::move(tree));
  }

  void Open(const YAML::Mark& mark, ConfigTree tree) {
    if (open_.size() >= kMaxDepth) {
      throw YAML::ParserException(
          mark, absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    tree.line = mark.line + 1;
    open_.push_back(std::move(tree));
  }

  void Close() {
    ConfigTree tree = std::move(open_.back());
    open_.pop_back();
    YAML::Mark mark;
    mark.line = tree.line - 1;
    Add(mark, std::move(tree));
  }

  const absl::string_view yaml_;
  // Unfinished maps and sequences, outermost first.
  std::vector<ConfigTree> open_;
};

}  // namespace

absl::StatusOr<ConfigTree> ParseConfigTree(absl::string_view yaml,
                                           absl::string_view file) {
  if (yaml.size() > kMaxConfigFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": larger than ", kMaxConfigFileBytes,
                     " bytes, want a description of a fleet"));
  }
  try {
    std::istringstream in{std::string(yaml)};
    YAML::Parser parser(in);
    TreeBuilder builder(yaml), second(yaml);
    if (!parser.HandleNextDocument(builder)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":1: empty, want at least 'model' and 'workers'"));
    }
    if (parser.HandleNextDocument(second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", second.root.line,
                       ": a second document, want one in a file"));
    }
    return std::move(builder.root);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ":", std::max(error.mark.line, 0) + 1, ": ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": not YAML: ", error.what()));
  }
}

}  // namespace ringfleet::cluster
