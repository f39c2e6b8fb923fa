// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/json_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ringfleet::coordinator::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

std::vector<std::string> Drain(JsonDocuments& documents) {
  std::vector<std::string> found;
  while (auto next = documents.Next()) found.push_back(*next);
  return found;
}

std::vector<std::string> Split(const std::string& text) {
  JsonDocuments documents;
  documents.Append(text);
  documents.End();
  return Drain(documents);
}

constexpr char kSequence[] =
    " {\"a\":\"}\\\"{\"}\n[1,[2]] \"x y\" 12 true{\"b\":{}}";
const std::vector<std::string> kParts = {"{\"a\":\"}\\\"{\"}", "[1,[2]]",
                                         "\"x y\"", "12", "true{\"b\":{}}"};

TEST(JsonDocumentsTest, BracketsInStringsEndNothing) {
  EXPECT_THAT(Split(kSequence), ElementsAreArray(kParts));
}

TEST(JsonDocumentsTest, BytewiseArrivalChangesNothing) {
  JsonDocuments documents;
  std::vector<std::string> found;
  for (const char c : std::string(kSequence)) {
    documents.Append(std::string(1, c));
    for (auto& next : Drain(documents)) found.push_back(next);
  }
  documents.End();
  for (auto& next : Drain(documents)) found.push_back(next);
  EXPECT_THAT(found, ElementsAreArray(kParts));
}

TEST(JsonDocumentsTest, ADocumentIsKnownBeforeTheInputEnds) {
  JsonDocuments documents;
  documents.Append("{\"a\":");
  EXPECT_THAT(Drain(documents), IsEmpty());
  documents.Append("1}{");
  EXPECT_THAT(Drain(documents), ElementsAre("{\"a\":1}"));
}

TEST(JsonDocumentsTest, WhatIsBrokenIsHandedOnWhole) {
  EXPECT_THAT(Split("{\"a\":1"), ElementsAre("{\"a\":1"));
  EXPECT_THAT(Split("} x"), ElementsAre("}", "x"));
  EXPECT_THAT(Split("\"open"), ElementsAre("\"open"));
  EXPECT_THAT(Split(" \n\t"), IsEmpty());
  EXPECT_THAT(Split(""), IsEmpty());
}

}  // namespace
}  // namespace ringfleet::coordinator::cli
