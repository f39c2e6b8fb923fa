// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batch_lines.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

class BatchLinesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = ServedModel::Load(RINGFLEET_TEST_MODELS "/tiny-v3");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = model->release();
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  ScannedLines Scan(const std::string& text) {
    testing::WriteFile(dir_.File("in.jsonl"), text);
    auto scanned =
        ScanLines(dir_.File("in.jsonl"), "", {model_, 512, 16, "tiny"});
    EXPECT_TRUE(scanned.ok()) << scanned.status();
    return scanned.ok() ? *std::move(scanned) : ScannedLines();
  }
  // Returns the code and the field of a line's error; empty: it has none.
  static std::string ErrorOf(const std::string& text,
                             absl::string_view endpoint = "") {
    BatchLine line;
    const auto error = ReadBatchLine(text, 7, endpoint, &line);
    if (!error.has_value()) return "";
    EXPECT_EQ(error->number, 7);
    EXPECT_NE(error->message, "");
    return absl::StrCat(error->code, " ", error->param);
  }

  static inline ServedModel* model_ = nullptr;
  testing::TempDir dir_;
};

// Lines that lie across the reads of a file, with both ends of lines, empty
// ones between them, and none at the end of the file.
TEST_F(BatchLinesTest, LinesAreFoundWhereverTheyLie) {
  std::string text;
  std::vector<int64_t> numbers;
  int64_t number = 0;
  for (int i = 0; i < 300; ++i) {
    const int64_t blanks = i % 5 == 0 ? i % 3 : 0;
    for (int64_t blank = 0; blank < blanks; ++blank) text += " \r\n";
    number += blanks + 1;
    numbers.push_back(number);
    absl::StrAppend(&text, "{\"prompt\":", std::string(i * 67 % 19'997, ' '),
                    "\"", i, "\"}",
                    i == 299     ? ""
                    : i % 2 == 0 ? "\n"
                                 : "\r\n");
  }
  ASSERT_GT(text.size(), size_t{2} << 20);
  const ScannedLines scanned = Scan(text);
  EXPECT_TRUE(scanned.errors.empty());
  ASSERT_EQ(scanned.lines.size(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const LineRecord& line = scanned.lines[i];
    EXPECT_EQ(line.number, numbers[i]);
    EXPECT_EQ(line.custom_id, absl::StrCat("line-", numbers[i]));
    const nlohmann::json body =
        nlohmann::json::parse(text.substr(static_cast<size_t>(line.begin),
                                          static_cast<size_t>(line.length)),
                              nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(body["prompt"], absl::StrCat(i));
  }
}

// Nothing behind such a line is read, so it is no empty one.
TEST_F(BatchLinesTest, ALineMayBeTooLong) {
  const ScannedLines scanned =
      Scan(absl::StrCat("{\"prompt\":\"a\"}\n",
                        std::string(kMostLineBytes + (1 << 20), ' '), "x"));
  ASSERT_EQ(scanned.errors.size(), 1u);
  EXPECT_EQ(scanned.errors[0].number, 2);
  EXPECT_TRUE(absl::StrContains(scanned.errors[0].message, "longer than"));
}

TEST_F(BatchLinesTest, ErrorsHaveALimit) {
  std::string text;
  for (size_t i = 0; i < kMostLineErrors + 20; ++i) text += "{}\n";
  const ScannedLines scanned = Scan(text);
  ASSERT_EQ(scanned.errors.size(), kMostLineErrors);
  EXPECT_EQ(scanned.errors.back().number, kMostLineErrors);
  const ScannedLines empty = Scan("\n \r\n");
  ASSERT_EQ(empty.errors.size(), 1u);
  EXPECT_EQ(empty.errors[0].code, "empty_file");
}

TEST_F(BatchLinesTest, LinesHaveALimit) {
  std::string text;
  for (size_t i = 0; i <= kMostLines; ++i) text += "{\"prompt\":[1]}\n";
  const ScannedLines scanned = Scan(text);
  EXPECT_EQ(scanned.lines.size(), kMostLines);
  ASSERT_EQ(scanned.errors.size(), 1u);
  EXPECT_EQ(scanned.errors[0].code, "too_many_tasks");
  EXPECT_EQ(scanned.errors[0].number, kMostLines + 1);
}

TEST_F(BatchLinesTest, LinesWithoutASeedGetOne) {
  std::string text =
      "{\"prompt\":\"a\",\"seed\":5}\n{\"prompt\":\"a\",\"seed\":null}\n";
  for (int i = 0; i < 50; ++i) text += "{\"prompt\":\"a\"}\n";
  const ScannedLines scanned = Scan(text);
  ASSERT_EQ(scanned.lines.size(), 52u);
  EXPECT_FALSE(scanned.lines[0].seed.has_value());
  std::set<int64_t> seeds;
  for (size_t i = 1; i < scanned.lines.size(); ++i) {
    ASSERT_TRUE(scanned.lines[i].seed.has_value()) << i;
    EXPECT_GE(*scanned.lines[i].seed, 0);
    seeds.insert(*scanned.lines[i].seed);
  }
  EXPECT_EQ(seeds.size(), 51u);
}

// Prompts that begin alike have the place of the first of them.
TEST_F(BatchLinesTest, CommonBeginningsShareAPlace) {
  const std::string begin(300, 'x');
  const ScannedLines scanned = Scan(absl::StrCat(
      R"({"prompt":")", begin, "1\"}\n", R"({"prompt":"other"})", "\n",
      R"({"prompt":")", begin, "2\"}\n", R"({"prompt":[1,2,3]})", "\n",
      R"({"prompt":[1,2,4]})", "\n", R"({"prompt":[1,2,3]})", "\n",
      R"({"messages":[{"role":"user","content":"a"}]})", "\n",
      R"({"messages":[{"role":"user","content":"a"},)",
      R"({"role":"assistant","content":"b"},)",
      R"({"role":"user","content":"c"}]})"));
  std::vector<int64_t> places;
  for (const LineRecord& line : scanned.lines) places.push_back(line.place);
  EXPECT_EQ(places, (std::vector<int64_t>{0, 1, 0, 2, 3, 2, 4, 4}));
}

TEST_F(BatchLinesTest, EachFieldIsChecked) {
  const std::string line =
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{}})";
  EXPECT_EQ(ErrorOf(line), "");
  EXPECT_EQ(ErrorOf(line, kCompletionEndpoint), "");
  EXPECT_EQ(ErrorOf(line, kChatEndpoint), "invalid_url url");
  EXPECT_EQ(ErrorOf(R"({"prompt":"a"})"), "");
  EXPECT_EQ(ErrorOf(R"({"prompt":"a"})", kCompletionEndpoint),
            "missing_required_parameter custom_id");
  EXPECT_EQ(ErrorOf(R"({"custom_id":"a","prompt":"a"})", kCompletionEndpoint),
            "missing_required_parameter method");
  EXPECT_EQ(ErrorOf(R"({"temperature":1})"), "missing_required_parameter ");
  EXPECT_EQ(ErrorOf("[]"), "invalid_json_line ");
  EXPECT_EQ(ErrorOf(R"({"prompt":"a","messages":[]})"), "invalid_value prompt");
  EXPECT_EQ(ErrorOf(R"({"custom_id":7,"prompt":"a"})"),
            "invalid_type custom_id");
  // Null is absent.
  EXPECT_EQ(ErrorOf(R"({"custom_id":null,"prompt":null,"messages":[]})"), "");
  EXPECT_EQ(ErrorOf(R"({"prompt":null,"messages":null})"),
            "missing_required_parameter ");
  EXPECT_EQ(ErrorOf(R"({"custom_id":"","prompt":"a"})"),
            "invalid_custom_id custom_id");
  const auto with_id = [](size_t bytes) {
    return absl::StrCat(R"({"custom_id":")", std::string(bytes, 'x'),
                        R"(","prompt":"a"})");
  };
  EXPECT_EQ(ErrorOf(with_id(kMostCustomIdBytes)), "");
  EXPECT_EQ(ErrorOf(with_id(kMostCustomIdBytes + 1)),
            "invalid_custom_id custom_id");
  EXPECT_EQ(ErrorOf(R"({"custom_id":"a","method":"GET","body":{}})"),
            "invalid_method method");
  EXPECT_EQ(ErrorOf(R"({"custom_id":"a","method":"POST","body":{}})"),
            "missing_required_parameter url");
  EXPECT_EQ(
      ErrorOf(R"({"custom_id":"a","method":"POST","url":"/v1/completions"})"),
      "missing_required_parameter body");
  EXPECT_EQ(
      ErrorOf(R"({"custom_id":"a","method":"POST","url":"/v1/completions",)"
              R"("body":[]})"),
      "invalid_type body");
  EXPECT_EQ(ErrorOf(std::string(kMostLineBytes + 1, ' ')),
            "invalid_json_line ");
}

TEST_F(BatchLinesTest, ErrorsAreJson) {
  const nlohmann::json errors = nlohmann::json::parse(LineErrorsJson(
      {{.code = "a", .message = "\"\n", .param = "p", .number = 3},
       {.code = "b", .message = "", .param = "", .number = 0}}));
  const nlohmann::json wanted = {
      {{"code", "a"}, {"message", "\"\n"}, {"param", "p"}, {"line", 3}},
      {{"code", "b"}, {"message", ""}, {"param", nullptr}, {"line", nullptr}}};
  EXPECT_EQ(errors, wanted);
}

}  // namespace
}  // namespace ringfleet::coordinator
