// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/multipart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Lists the parts: "name", "name(file)" and their values.
class ListedForm final : public FormReceiver {
 public:
  absl::Status BeginPart(const FormPart& part) override {
    parts_.push_back(part.name);
    if (part.file_name.has_value()) {
      absl::StrAppend(&parts_.back(), "(", *part.file_name, ")");
    }
    parts_.back() += "=";
    open_ = true;
    return absl::OkStatus();
  }
  absl::Status TakeValue(absl::string_view bytes) override {
    EXPECT_TRUE(open_);
    EXPECT_FALSE(bytes.empty());
    absl::StrAppend(&parts_.back(), bytes);
    return absl::OkStatus();
  }
  absl::Status EndPart() override {
    EXPECT_TRUE(std::exchange(open_, false));
    return absl::OkStatus();
  }
  const std::vector<std::string>& parts() const { return parts_; }

 private:
  std::vector<std::string> parts_;
  bool open_ = false;
};

// Reads a body in pieces that end at `cuts`.
absl::StatusOr<std::vector<std::string>> PartsOfForm(
    absl::string_view body, absl::string_view boundary = "AbC",
    const std::vector<size_t>& cuts = {}) {
  ListedForm form;
  MultipartReader reader(boundary, &form);
  size_t begin = 0;
  for (const size_t cut : cuts) {
    if (absl::Status read = reader.Read(body.substr(begin, cut - begin));
        !read.ok()) {
      return read;
    }
    begin = cut;
  }
  if (absl::Status read = reader.Read(body.substr(begin)); !read.ok()) {
    return read;
  }
  if (absl::Status end = reader.End(); !end.ok()) return end;
  return form.parts();
}

std::string ErrorOfForm(absl::string_view body) {
  const auto parts = PartsOfForm(body);
  EXPECT_EQ(parts.status().code(), absl::StatusCode::kInvalidArgument) << body;
  return std::string(parts.status().message());
}

// Values with parts of the boundary, empty values, padding, text around.
constexpr char kForm[] =
    "preamble\r\n--AbC \t\r\n"
    "content-disposition: FORM-DATA; filename=\"a \\\"b\\\".jsonl\"; "
    "name=\"file\"\r\n"
    "Content-Type: application/jsonl\r\n\r\n"
    "{}\r\n--Ab\r\n-\r\n--A\r\n--\r\r\n\n"
    "\r\n--AbC\r\n"
    "Content-Disposition: form-data;name=purpose\r\n\r\n"
    "batch"
    "\r\n--AbC\r\n"
    "Content-Disposition: form-data; name=\"empty\"\r\n\r\n"
    "\r\n--AbC--\r\nepilogue\r\n--AbC\r\n";

const auto kFormParts =
    ElementsAre("file(a \"b\".jsonl)={}\r\n--Ab\r\n-\r\n--A\r\n--\r\r\n\n",
                "purpose=batch", "empty=");

TEST(MultipartTest, ReadsAFormCutAnywhere) {
  const absl::string_view form = kForm;
  std::vector<size_t> all;
  for (size_t first = 0; first <= form.size(); ++first) {
    SCOPED_TRACE(first);
    const auto parts = PartsOfForm(form, "AbC", {first});
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(*parts, kFormParts);
    for (size_t second = first; second <= form.size(); second += 7) {
      ASSERT_THAT(*PartsOfForm(form, "AbC", {first, second}), kFormParts);
    }
    all.push_back(first);
  }
  EXPECT_THAT(*PartsOfForm(form, "AbC", all), kFormParts);
}

TEST(MultipartTest, TheFirstBoundaryMayBeginTheBody) {
  EXPECT_THAT(*PartsOfForm("--AbC\r\nContent-Disposition: form-data; "
                           "name=\"a;b\"\r\n\r\n1\r\n--AbC--"),
              ElementsAre("a;b=1"));
  EXPECT_THAT(*PartsOfForm("--AbC--"), ElementsAre());
}

TEST(MultipartTest, NamesOfFiles) {
  const auto name_of = [](absl::string_view parameters) {
    const auto parts = PartsOfForm(
        absl::StrCat("--AbC\r\nContent-Disposition: form-data; name=f; ",
                     parameters, "\r\n\r\n\r\n--AbC--"));
    return parts.ok() ? parts->at(0) : std::string(parts.status().message());
  };
  EXPECT_EQ(name_of("filename=\"C:\\x\\y.txt\""), "f(C:\\x\\y.txt)=");
  EXPECT_EQ(name_of("filename=\"\""), "f()=");
  EXPECT_EQ(name_of("FileName = x.y ;"), "f(x.y)=");
  EXPECT_EQ(name_of("filename=old; filename*=UTF-8''n%c3%a4%20w"),
            "f(n\xc3\xa4 w)=");
  EXPECT_EQ(name_of("filename=old; filename*=latin1''x"), "f(old)=");
  EXPECT_THAT(name_of("filename=\"open"), HasSubstr("malformed parameters"));
  EXPECT_THAT(name_of("filename"), HasSubstr("malformed parameters"));
  EXPECT_THAT(name_of("filename=\"a\"b"), HasSubstr("malformed parameters"));
}

TEST(MultipartTest, MalformedFormsAreErrors) {
  const std::string head = "--AbC\r\nContent-Disposition: form-data; name=a";
  EXPECT_THAT(ErrorOfForm(""), HasSubstr("before its last boundary"));
  EXPECT_THAT(ErrorOfForm("nothing"), HasSubstr("before its last boundary"));
  EXPECT_THAT(ErrorOfForm(head + "\r\n\r\nx"),
              HasSubstr("before its last boundary"));
  EXPECT_THAT(ErrorOfForm(head + "\r\n\r\nx\r\n--AbC-"),
              HasSubstr("before its last boundary"));
  EXPECT_THAT(ErrorOfForm(head + "\r\n\r\nx\r\n--AbCd--"),
              HasSubstr("more than the boundary"));
  EXPECT_THAT(ErrorOfForm("--AbC\r\n\r\nx\r\n--AbC--"),
              HasSubstr("a part has no head"));
  EXPECT_THAT(ErrorOfForm("--AbC\r\nContent-Type: a/b\r\n\r\n\r\n--AbC--"),
              HasSubstr("no Content-Disposition"));
  EXPECT_THAT(ErrorOfForm("--AbC\r\nnonsense\r\n\r\n\r\n--AbC--"),
              HasSubstr("no colon"));
  EXPECT_THAT(
      ErrorOfForm("--AbC\r\nContent-Disposition: form-data\r\n\r\n\r\n--AbC--"),
      HasSubstr("no name"));
  EXPECT_THAT(ErrorOfForm("--AbC\r\nContent-Disposition: attachment; "
                          "name=a\r\n\r\n\r\n--AbC--"),
              HasSubstr("not form-data"));
  EXPECT_THAT(ErrorOfForm(head + "\r\nContent-Transfer-Encoding: base64\r\n"
                                 "\r\neA==\r\n--AbC--"),
              HasSubstr("encoded"));
  EXPECT_THAT(ErrorOfForm(head + std::string(kMostPartHead, 'x') +
                          "\r\n\r\n\r\n--AbC--"),
              HasSubstr("the head of a part is longer"));
  EXPECT_THAT(ErrorOfForm("--AbC" + std::string(1000, ' ')),
              HasSubstr("more than the boundary"));
  std::string many;
  for (size_t i = 0; i <= kMostFormParts; ++i) {
    absl::StrAppend(&many, head, "\r\n\r\n\r\n");
  }
  EXPECT_THAT(ErrorOfForm(many), HasSubstr("more than 32 parts"));
}

TEST(MultipartTest, Boundaries) {
  EXPECT_EQ(*BoundaryOf("multipart/form-data; boundary=AbC"), "AbC");
  EXPECT_EQ(*BoundaryOf("multipart/form-data;charset=x; Boundary=\"a b;c\""),
            "a b;c");
  for (const std::string& bad :
       {std::string("multipart/form-data"),
        std::string("multipart/form-data; boundary="),
        "multipart/form-data; boundary=" + std::string(71, 'x')}) {
    EXPECT_EQ(BoundaryOf(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

// Changed bytes and random cuts end in a form or an error.
TEST(MultipartTest, RandomBytesHarmNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string body = kForm;
    for (int i = 0; i < 3; ++i) {
      body[random() % body.size()] = round % 2 == 0
                                         ? static_cast<char>(random())
                                         : "\r\n-AbC\":;="[random() % 10];
    }
    const size_t cut = random() % body.size();
    const auto whole = PartsOfForm(body);
    const auto parts = PartsOfForm(body, "AbC", {cut});
    ASSERT_EQ(whole.ok(), parts.ok()) << body;
    if (whole.ok()) {
      ASSERT_EQ(*whole, *parts) << body;
    }
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
