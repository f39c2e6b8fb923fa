// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/reasoning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/bundled_model.h"

namespace ringfleet::coordinator {
namespace {

constexpr ReasoningMarkers kThink = {"<think>", "</think>"};
constexpr ReasoningMarkers kMistral = {"[THINK]", "[/THINK]"};

using State = ReasoningState;

// The parts of an output that comes in pieces of `size` bytes, or of the tokens
// of a model, whose markers are tokens.
AnswerPiece Divided(const Reasoning& reasoning,
                    const std::vector<std::string>& pieces, size_t together) {
  ReasoningSplitter splitter(reasoning);
  AnswerPiece out;
  const auto add = [&out](const AnswerPiece& piece) {
    // A reasoning is not told once the answer has begun.
    EXPECT_TRUE(out.text.empty() || piece.reasoning.empty());
    out.reasoning += piece.reasoning;
    out.text += piece.text;
  };
  for (size_t i = 0; i < pieces.size(); i += together) {
    std::string text;
    for (size_t j = i; j < std::min(i + together, pieces.size()); ++j) {
      text += pieces[j];
    }
    add(splitter.Add(text));
  }
  add(splitter.Finish());
  EXPECT_EQ(splitter.held(), 0u);
  return out;
}

void ExpectDivided(State state, const std::string& output,
                   const std::string& reasoning, const std::string& answer,
                   const ReasoningMarkers& markers = kThink) {
  SCOPED_TRACE(output);
  static const Tokenizer* const tokenizer =
      Tokenizer::Load(testing::BundledModel("tiny-v3"))->release();
  std::vector<std::string> tokens, bytes;
  StreamDecoder decoder(tokenizer);
  const std::vector<uint32_t> ids = *tokenizer->Encode(output);
  for (const uint32_t id : ids) tokens.push_back(decoder.Add(id));
  for (const char c : output) bytes.emplace_back(1, c);
  for (const auto& pieces : {tokens, bytes}) {
    for (const size_t together :
         {size_t{1}, size_t{2}, size_t{3}, size_t{1000}}) {
      const AnswerPiece got = Divided({markers, state}, pieces, together);
      EXPECT_EQ(got.reasoning, reasoning) << together << " pieces at a time";
      EXPECT_EQ(got.text, answer) << together << " pieces at a time";
    }
  }
}

TEST(ReasoningSplitterTest, AnOutputWithoutMarkersIsAnAnswer) {
  ExpectDivided(State::kUndecided, "Hello <b> w\xC3\xB6rld", "",
                "Hello <b> w\xC3\xB6rld");
  ExpectDivided(State::kUndecided, "\n  x", "", "\n  x");
  ExpectDivided(State::kUndecided, " \n", "", " \n");
  ExpectDivided(State::kUndecided, "<thi", "", "<thi");
  ExpectDivided(State::kUndecided, "", "", "");
}

TEST(ReasoningSplitterTest, AnOutputMayBeginItsReasoning) {
  ExpectDivided(State::kUndecided,
                "<think>\nLet me\n\nsee.\n</think>\n\nYes.\n", "Let me\n\nsee.",
                "Yes.\n");
  ExpectDivided(State::kUndecided, "\n<think>a</think>b", "a", "b");
  ExpectDivided(State::kUndecided, "<think>\n\n</think>\n\nb", "", "b");
  // Only at the beginning is a marker one.
  ExpectDivided(State::kUndecided, "x <think>a</think>b", "",
                "x <think>a</think>b");
}

TEST(ReasoningSplitterTest, AnOpenReasoningHasOnlyItsEnd) {
  ExpectDivided(State::kReasoningBegins, "\nLet me see.\n</think>\n\nYes.",
                "Let me see.", "Yes.");
  ExpectDivided(State::kReasoningBegins, "</think>Yes.", "", "Yes.");
  // Some models write the marker again.
  ExpectDivided(State::kReasoningBegins, "<think>\na</think>b", "a", "b");
  ExpectDivided(State::kReasoningBegins, "<think><think>a</think>b", "a", "b");
  // Text that resembles a marker is reasoning, also a begin marker within it.
  ExpectDivided(State::kReasoningBegins, "a </thin b <think> c</think>d",
                "a </thin b <think> c", "d");
  // The answer may speak of markers.
  ExpectDivided(State::kReasoningBegins, "a</think>b</think>c<think>d", "a",
                "b</think>c<think>d");
}

TEST(ReasoningSplitterTest, AnEndIsNotNeeded) {
  ExpectDivided(State::kReasoningBegins, "Let me", "Let me", "");
  ExpectDivided(State::kReasoningBegins, "Let me \n", "Let me", "");
  ExpectDivided(State::kReasoningBegins, "Let me</thi", "Let me</thi", "");
  ExpectDivided(State::kUndecided, "<think>", "", "");
}

TEST(ReasoningSplitterTest, AnEndAloneIsNoText) {
  ExpectDivided(State::kUndecided, "</think>\n\nYes.", "", "Yes.");
  ExpectDivided(State::kUndecided, "</thinkers", "", "</thinkers");
}

TEST(ReasoningSplitterTest, OtherFamiliesHaveOtherMarkers) {
  ExpectDivided(State::kUndecided, "[THINK]a</think>[/THINK]b", "a</think>",
                "b", kMistral);
  ExpectDivided(State::kUndecided, "<think>a</think>b", "", "<think>a</think>b",
                kMistral);
}

TEST(ReasoningSplitterTest, HoldsBackNoMoreThanItMust) {
  ReasoningSplitter splitter({kThink, State::kReasoningBegins});
  EXPECT_EQ(splitter.Add("ab").reasoning, "ab");
  EXPECT_EQ(splitter.Add(" <").reasoning, "");
  EXPECT_EQ(splitter.held(), 2u);
  EXPECT_EQ(splitter.Add("b").reasoning, " <b");
  EXPECT_FALSE(splitter.reasoning_end().has_value());
  EXPECT_EQ(splitter.Add("</think>x").text, "x");
  EXPECT_EQ(splitter.reasoning_end(), 13u);
  EXPECT_EQ(splitter.Add("</th").text, "</th");
}

// A prompt of parts: those that begin with 'M' are of messages.
MarkedText Prompt(const std::vector<std::string>& parts) {
  MarkedText prompt;
  for (const std::string& part : parts) {
    prompt.Append(part.substr(1),
                  part[0] == 'M' ? Origin::kMessage : Origin::kTemplate);
  }
  return prompt;
}

State Behind(const std::vector<std::string>& parts,
             const std::optional<std::string>& continued = std::nullopt) {
  return StateBehind(Prompt(parts), kThink, continued);
}

TEST(ReasoningTest, TheTemplatesLastTextOpensIt) {
  EXPECT_EQ(Behind({"T<user>", "Mhi", "T<bot><think>\n"}),
            State::kReasoningBegins);
  EXPECT_EQ(Behind({"T<user>", "Mhi", "T<bot>"}), State::kUndecided);
  EXPECT_EQ(Behind({"T<user>", "Mhi", "T<bot><think></think>"}),
            State::kUndecided);
  EXPECT_EQ(Behind({"T<user>", "Mhi", "T<bot></think>"}), State::kUndecided);
  // A system text of the template may explain the markers.
  EXPECT_EQ(Behind({"TWrite <think>.<user>", "Mhi", "T<bot>"}),
            State::kUndecided);
  // Earlier turns do not count.
  EXPECT_EQ(Behind({"T<user>", "Mhi", "T<bot><think>", "Ma", "T</think>", "Mb",
                    "T<user>", "Mc", "T<bot>"}),
            State::kUndecided);
  EXPECT_EQ(Behind({}), State::kUndecided);
}

TEST(ReasoningTest, TextOfAMessageIsNoMarker) {
  EXPECT_EQ(Behind({"T<user>", "M<think>"}), State::kUndecided);
  EXPECT_EQ(Behind({"T<user>", "M<think>", "T<bot>"}), State::kUndecided);
  EXPECT_EQ(Behind({"T<user>", "M</think>", "T<bot><think>"}),
            State::kReasoningBegins);
  EXPECT_EQ(Behind({"T<thi", "Mnk>"}), State::kUndecided);
}

TEST(ReasoningTest, AContinuedMessageIsOutput) {
  EXPECT_EQ(Behind({"T<bot>", "M<think>\nLet me"}, "<think>\nLet me"),
            State::kReasoning);
  EXPECT_EQ(Behind({"T<bot>", "M<think>"}, "<think>"), State::kReasoningBegins);
  EXPECT_EQ(Behind({"T<bot>", "M<think>a</think>"}, "<think>a</think>"),
            State::kAnswerBegins);
  EXPECT_EQ(Behind({"T<bot>", "MHello"}, "Hello"), State::kAnswer);
  EXPECT_EQ(Behind({"T<bot><think>\n", "MLet me"}, "Let me"),
            State::kReasoning);
  EXPECT_EQ(Behind({"T<bot></think>", "MHello"}, "Hello"), State::kAnswer);
}

TEST(ReasoningTest, TheTemplateOrTheTokenizerKnowsTheMarkers) {
  const auto known = Tokenizer::Load(testing::BundledModel("tiny-v3"));
  ASSERT_TRUE(known.ok()) << known.status();
  ASSERT_TRUE(MarkersOf(**known).has_value());
  EXPECT_EQ(MarkersOf(**known)->end, "</think>");
  EXPECT_EQ((*known)->TokenBytes(*TokenOf(**known, "<think>")), "<think>");
  EXPECT_FALSE(TokenOf(**known, "[THINK]").has_value());
}

}  // namespace
}  // namespace ringfleet::coordinator
