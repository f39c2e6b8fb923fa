// SPDX-License-Identifier: Apache-2.0
// Reads Prometheus' text format, and finds what a scraper or `promtool check
// metrics` would find in it.
#ifndef RINGFLEET_TESTS_TESTING_EXPOSITION_H_
#define RINGFLEET_TESTS_TESTING_EXPOSITION_H_

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ringfleet::testing {

struct Exposition {
  std::map<std::string, double> samples;  // By name and labels, as written.
  std::vector<std::string> problems;
};

class ExpositionReader {
 public:
  static Exposition Read(absl::string_view text) {
    ExpositionReader reader;
    if (!absl::ConsumeSuffix(&text, "\n")) reader.Problem("no last newline");
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      reader.ReadLine(line);
    }
    reader.EndFamily();
    return std::move(reader.out_);
  }

 private:
  // The buckets of one set of labels.
  struct Buckets {
    double bound = -1, count = 0, last = -1;
    bool infinite = false, sum = false;
  };

  void Problem(absl::string_view what) {
    out_.problems.push_back(absl::StrCat(family_, ": ", what));
  }

  void ReadLine(absl::string_view line) {
    if (absl::ConsumePrefix(&line, "# HELP ")) {
      EndFamily();
      const std::vector<std::string> parts =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      family_ = parts[0];
      if (parts.size() < 2 || parts[1].empty()) Problem("no help");
      if (!families_.insert(family_).second) Problem("comes twice");
    } else if (absl::ConsumePrefix(&line, "# TYPE ")) {
      const std::vector<std::string> parts = absl::StrSplit(line, ' ');
      if (parts.size() != 2 || parts[0] != family_) return Problem("bad TYPE");
      kind_ = parts[1];
      CheckName();
    } else {
      ReadSample(line);
    }
  }

  void CheckName() {
    // vLLM's name for a histogram.
    const bool total = absl::EndsWith(family_, "_total") &&
                       family_ != "vllm:iteration_tokens_total";
    if ((kind_ == "counter") != total) Problem("_total is for counters");
    if (kind_ != "counter" && kind_ != "gauge" && kind_ != "histogram") {
      Problem("unknown type");
    }
    absl::string_view own = family_;
    absl::ConsumePrefix(&own, "vllm:");
    for (const char c : own) {
      if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_') {
        return Problem("want lower case, digits and _");
      }
    }
    for (const absl::string_view part : absl::StrSplit(family_, '_')) {
      for (const char* const unit :
           {"milliseconds", "ms", "us", "ns", "minutes", "kib", "mib"}) {
        if (part == unit) Problem("want a base unit");
      }
    }
  }

  // Reads `{a="b",...}`. Returns the labels without `le`, which it sets.
  std::string ReadLabels(absl::string_view* rest, std::string* le) {
    std::string labels;
    std::set<std::string> names;
    if (!absl::ConsumePrefix(rest, "{")) return labels;
    while (true) {
      const size_t equals = rest->find("=\"");
      if (equals == absl::string_view::npos) {
        Problem("bad labels");
        return labels;
      }
      const std::string name(rest->substr(0, equals));
      if (!names.insert(name).second) Problem("a label comes twice");
      rest->remove_prefix(equals + 2);
      std::string value;
      while (!rest->empty() && (*rest)[0] != '"') {
        if ((*rest)[0] == '\\') {
          value += (*rest)[0];
          rest->remove_prefix(1);
          if (rest->empty() || !absl::StrContains("\\\"n", (*rest)[0])) {
            Problem("bad escape");
          }
        }
        value += (*rest)[0];
        rest->remove_prefix(1);
      }
      if (!absl::ConsumePrefix(rest, "\"")) Problem("open label value");
      (name == "le" ? *le : labels) += name == "le" ? value : name + value;
      if (absl::ConsumePrefix(rest, "}")) return labels;
      if (!absl::ConsumePrefix(rest, ",")) {
        Problem("bad labels");
        return labels;
      }
    }
  }

  void ReadSample(absl::string_view line) {
    absl::string_view rest = line;
    const std::string name(rest.substr(0, rest.find_first_of("{ ")));
    rest.remove_prefix(name.size());
    absl::string_view suffix = name;
    if (!absl::ConsumePrefix(&suffix, family_)) {
      return Problem(absl::StrCat("holds ", line));
    }
    std::string le;
    const std::string labels = ReadLabels(&rest, &le);
    const std::string key(line.substr(0, line.size() - rest.size()));
    if (!absl::ConsumePrefix(&rest, " ") || rest.empty()) {
      return Problem(absl::StrCat("bad sample ", line));
    }
    char* end = nullptr;
    const std::string number(rest);
    const double value = std::strtod(number.c_str(), &end);
    if (*end != '\0') Problem(absl::StrCat("bad number in ", line));
    if (!out_.samples.emplace(key, value).second) {
      Problem(absl::StrCat("twice: ", key));
    }
    if (kind_ != "histogram") {
      if (!suffix.empty()) Problem(absl::StrCat("holds ", line));
      return;
    }
    Buckets& buckets = buckets_[labels];
    if (suffix == "_bucket") {
      const double bound =
          le == "+Inf" ? 1e300 : std::strtod(le.c_str(), nullptr);
      if (bound <= buckets.bound || value < buckets.last) {
        Problem("buckets must rise");
      }
      buckets.bound = bound;
      buckets.last = value;
      buckets.infinite |= le == "+Inf";
    } else if (suffix == "_sum") {
      buckets.sum = true;
    } else if (suffix == "_count") {
      if (!buckets.infinite || !buckets.sum || value != buckets.last) {
        Problem("want le=\"+Inf\", _sum and an equal _count");
      }
      buckets.count = 1;
    } else {
      Problem(absl::StrCat("holds ", line));
    }
  }

  void EndFamily() {
    for (const auto& [labels, buckets] : buckets_) {
      if (buckets.count != 1) Problem("no _count");
    }
    buckets_.clear();
    kind_.clear();
  }

  Exposition out_;
  std::string family_, kind_;
  std::set<std::string> families_;
  std::map<std::string, Buckets> buckets_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_EXPOSITION_H_
