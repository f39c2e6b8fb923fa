// SPDX-License-Identifier: Apache-2.0
// Text of a message never becomes a control token, whatever a template does
// with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/chat/chat_template.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "coordinator/tokenizer/utf8.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MarkedText RenderOk(const std::string& source,
                    const Conversation& conversation) {
  const auto parsed = ChatTemplate::Parse(source, "<s>", "</s>");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return {};
  const auto prompt = (*parsed)->Render(conversation, absl::CivilSecond());
  EXPECT_TRUE(prompt.ok()) << source << "\n" << prompt.status();
  return prompt.value_or(MarkedText());
}

Conversation OneMessage(const std::string& role, const std::string& content) {
  Conversation conversation;
  conversation.messages =
      ordered_json::array({ordered_json{{"role", role}, {"content", content}}});
  return conversation;
}

// The text with what is of a message between brackets of its own.
std::string Marked(const MarkedText& text) {
  std::string out;
  size_t begin = 0;
  for (const MarkedText::Run& run : text.runs()) {
    const std::string part = text.bytes().substr(begin, run.end - begin);
    out += run.origin == Origin::kMessage ? "\u27e6" + part + "\u27e7" : part;
    begin = run.end;
  }
  return out;
}

// An expression over `c`, the content of a message.
std::string MarkedExpression(const std::string& expression,
                             const std::string& content) {
  return Marked(
      RenderOk("{% set c = messages[0].content %}{{ " + expression + " }}",
               OneMessage("user", content)));
}

TEST(ProvenanceTest, EachCharacterKeepsItsOrigin) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"'<' ~ c ~ '>'", "<⟦a,B c⟧>"},
      {"'<' + c", "<⟦a,B c⟧"},
      {"c[1:3]", "⟦,B⟧"},
      {"('x' + c)[:2]", "x⟦a⟧"},
      {"(c + 'x')[::-1]", "x⟦c B,a⟧"},
      {"c.split(',')[1] + '!'", "⟦B c⟧!"},
      {"c.split() | join('+')", "⟦a,B⟧+⟦c⟧"},
      {"c.rsplit(' ', 1)[0] ~ '.'", "⟦a,B⟧."},
      {"('  ' + c + '  ').strip()", "⟦a,B c⟧"},
      {"('x' + c).lstrip('xa')", "⟦,B c⟧"},
      {"c.replace(',', ';')", "⟦a⟧;⟦B c⟧"},
      {"'1-2'.replace('-', c)", "1⟦a,B c⟧2"},
      {"'x'.join([c, '|', c[:1]])", "⟦a,B c⟧x|x⟦a⟧"},
      {"c.join('xy')", "x⟦a,B c⟧y"},
      {"('x' ~ c) | upper", "X⟦A,B C⟧"},
      {"('x' ~ c) | title", "X⟦a,b C⟧"},
      {"('x' ~ c).capitalize()", "X⟦a,b c⟧"},
      {"c | trim | lower | replace('b', 'b')", "⟦a,⟧b⟦ c⟧"},
      {"c | tojson", "⟦\"a,B c\"⟧"},
      {"['x', c] | tojson", "[\"x\", ⟦\"a,B c\"⟧]"},
      {"[c]", "[⟦'a,B c'⟧]"},
      {"{c: 'v'}", "{⟦'a,B c'⟧: 'v'}"},
      {"{c: 1} | items | first | first", "⟦a,B c⟧"},
      {"{'k': c}.k ~ {'k': c}.get('k')", "⟦a,B ca,B c⟧"},
      {"'%s=%3s' % ('k', c[0])", "k=  ⟦a⟧"},
      {"'{}{k:>3}'.format('x', k=c[0])", "x  ⟦a⟧"},
      {"'<%s>' | format(c)", "<⟦a,B c⟧>"},
      {"('\"' ~ c ~ '\"') | from_json", "⟦a,B c⟧"},
      {"c | list | first", "⟦a⟧"},
      {"c | e ~ '&'", "⟦a,B c⟧&"},
      {"('<' ~ c) | e", "&lt;⟦a,B c⟧"},
      {"c | safe", "⟦a,B c⟧"},
      {"[c, 'z'] | sort | join", "⟦a,B c⟧z"},
      {"[c] | map('upper') | join('-')", "⟦A,B C⟧"},
      {"c | default('x')", "⟦a,B c⟧"},
      {"(c ~ '\\nx') | indent(2)", "⟦a,B c⟧\n  x"},
      {"c | truncate(4, true, '.', 0)", "⟦a,B⟧."},
      {"c.partition(',') | join('_')", "⟦a⟧_⟦,⟧_⟦B c⟧"},
      {"c if c == 'a,B c' else 'no'", "⟦a,B c⟧"},
      {"'yes' if c.startswith('a') else 'no'", "yes"},
      {"c.zfill(8)", "000⟦a,B c⟧"},
      {"c.splitlines()[0] ~ messages[0].role", "⟦a,B c⟧user"},
      {"messages[0] | tojson",
       "⟦{\"role\": ⟧\"user\"⟦, \"content\": \"a,B c\"}⟧"},
  };
  for (const auto& [expression, marked] : cases) {
    EXPECT_EQ(MarkedExpression(expression, "a,B c"), marked) << expression;
  }
}

TEST(ProvenanceTest, NumbersOfAMessageAreOfTheMessage) {
  Conversation conversation;
  conversation.variables = {{"n", 7}, {"f", 1.5}, {"b", true}};
  EXPECT_EQ(Marked(RenderOk("{{ n }}{{ n + 1 }}{{ -f }}{{ b }}{{ n|string }}"
                            "{{ 'x' }}{{ '12'|int + n }}{{ 3 + 4 }}",
                            conversation)),
            "⟦78-1.5True7⟧x⟦19⟧7");
  conversation.variables = {{"s", "12"}};
  EXPECT_EQ(Marked(RenderOk("{{ s|int + 1 }}{{ 1 }}", conversation)), "⟦13⟧1");
}

TEST(ProvenanceTest, StatementsKeepTheOrigin) {
  const Conversation talk = OneMessage("user", "c");
  EXPECT_EQ(Marked(RenderOk(
                "{% macro m(x) %}<{{ x }}>{% endmacro %}"
                "{% set b %}[{{ messages[0].content }}]{% endset %}"
                "{% set ns = namespace(v='') %}"
                "{% for m in messages %}{% set ns.v = ns.v ~ m.content ~ ',' "
                "%}{% endfor %}"
                "{{ m(messages[0].content) }}{{ b }}{{ ns.v }}"
                "{% filter upper %}x{{ messages[0].content }}{% endfilter %}"
                "{% for k in messages[0].content %}{{ k }}{% endfor %}",
                talk)),
            "<⟦c⟧>[⟦c⟧]⟦c⟧,X⟦Cc⟧");
}

// Roles are words of the API, of which templates build tokens.
TEST(ProvenanceTest, OnlyKnownRolesAreTrusted) {
  EXPECT_EQ(Marked(RenderOk("<|{{ messages[0].role }}|>",
                            OneMessage("assistant", ""))),
            "<|assistant|>");
  EXPECT_EQ(
      Marked(RenderOk("<|{{ messages[0].role }}|>", OneMessage("im_end", ""))),
      "<|⟦im_end⟧|>");
}

TEST(ProvenanceTest, SpecialTokensOfTheTokenizerAreTrusted) {
  EXPECT_EQ(Marked(RenderOk("{{ bos_token }}{{ messages[0].content }}"
                            "{{ eos_token }}",
                            OneMessage("user", "<s></s>"))),
            "<s>⟦<s></s>⟧</s>");
}

// --- Prompts as ids, with a tokenizer of one token for each byte and these
// added tokens. DeepSeek marks most of its control tokens as not special.
struct Added {
  const char* content;
  bool special;
};
constexpr Added kAdded[] = {{"<s>", true},
                            {"<\uff5cUser\uff5c>", false},
                            {"<\uff5cAssistant\uff5c>", false},
                            {"<\uff5ctool\u2581sep\uff5c>", false},
                            {"<|im_end|>", true},
                            {"<|im_user|>", true},
                            {"<|im_middle|>", true},
                            {"<|user|>", false},
                            {"<|assistant|>", false},
                            {"[INST]", true},
                            {"[/INST]", true},
                            {"<think>", false}};
constexpr uint32_t kFirstAdded = 256;

// The character that stands for a byte in a vocabulary, by GPT-2's
// bytes_to_unicode.
std::string SpellingOf(int byte) {
  static const std::vector<uint32_t>* const kCharacters = [] {
    auto* characters = new std::vector<uint32_t>();
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b > 32 && b < 127) || (b > 160 && b != 173);
      characters->push_back(itself ? b : next++);
    }
    return characters;
  }();
  std::string out;
  AppendUtf8((*kCharacters)[byte], &out);
  return out;
}

class PromptIdsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ordered_json vocab = ordered_json::object();
    for (int byte = 0; byte < 256; ++byte) vocab[SpellingOf(byte)] = byte;
    ordered_json added = ordered_json::array();
    for (const Added& token : kAdded) {
      added.push_back({{"id", kFirstAdded + added.size()},
                       {"content", token.content},
                       {"special", token.special},
                       {"normalized", !token.special}});
    }
    std::ofstream(folder_.File("tokenizer.json")) << ordered_json{
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"use_regex", false}}},
        {"model",
         {{"type", "BPE"},
          {"vocab", vocab},
          {"merges", ordered_json::array()}}}}.dump();
    auto loaded = Tokenizer::Load(folder_.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    tokenizer_ = *std::move(loaded);
  }

  // The added tokens among the ids of a prompt, by their contents. Checks that
  // the ids give the whole text back.
  std::vector<std::string> AddedIn(const MarkedText& prompt) const {
    const auto ids = tokenizer_->Encode(prompt);
    EXPECT_TRUE(ids.ok()) << ids.status();
    std::vector<std::string> added;
    std::string text;
    for (const uint32_t id : *ids) {
      const absl::string_view bytes = tokenizer_->TokenBytes(id);
      text.append(bytes.data(), bytes.size());
      if (id >= kFirstAdded) added.emplace_back(bytes.data(), bytes.size());
    }
    EXPECT_EQ(text, prompt.bytes());
    return added;
  }

  testing::TempDir folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The shapes of templates of R1, Kimi, GLM and Mistral.
constexpr const char* kShapes[] = {
    // R1: system texts joined, thoughts split off, arguments appended.
    "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{% set ns.system = ns.system + m['content'] "
    "%}{% endif %}{% endfor %}{{ ns.system }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '<\uff5cUser\uff5c>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{{ '<\uff5cAssistant\uff5c>' + "
    "m['content'].split('</think>')[-1].strip() }}{% for c in m.tool_calls or "
    "[] %}{{ c.function.name + '<\uff5ctool\u2581sep\uff5c>' + "
    "(c.function.arguments | tojson) }}{% endfor %}{% elif m['role'] == 'tool' "
    "%}{{ '[' ~ m['name'] ~ ']' ~ m['content'] | trim }}{% endif %}"
    "{% endfor %}{{ '<\uff5cAssistant\uff5c>' }}",
    // Kimi: names and roles between tokens, tools as JSON, a macro for parts.
    "{% macro text(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}"
    "{{ p['text'] }}{% endfor %}{% endif %}{% endmacro %}{{ tools | tojson }}"
    "{% for m in messages %}<|im_user|>{{ m.get('name') or m.role }}"
    "<|im_middle|>{{ text(m.content) }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>{% endfor %}",
    // GLM: tokens made of roles, arguments by key, reversed and sliced texts.
    "{% for m in messages %}{{ '<|' ~ ('assistant' if m.role == 'assistant' "
    "else 'user') ~ '|>' }}{{ m.name }}{{ m.content[::-1][::-1] }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in "
    "c.function.arguments.items() %}{{ k | upper | lower }}{{ v }}"
    "{{ c.function.name }}{% endfor %}{% endfor %}{% endfor %}",
    // Mistral: strings that are joined and replaced, and marked as safe.
    "{% for m in messages %}{{ '[INST]' ~ (m.content | replace('x', 'x') | "
    "safe) ~ m.name ~ '[/INST]' }}{{ m.tool_calls | default([]) | "
    "map(attribute='function') | map(attribute='arguments') | map('tojson') | "
    "join(',') }}{% endfor %}{{ tools | map(attribute='name') | sort | join }}",
};

Conversation WithText(const std::string& text) {
  ordered_json function = {{"name", text}};
  function["arguments"][text] = text;
  ordered_json calling = {{"role", "assistant"},
                          {"content", text + "</think>" + text}};
  calling["tool_calls"] =
      ordered_json::array({ordered_json{{"function", function}}});
  Conversation conversation;
  conversation.messages = ordered_json::array(
      {{{"role", "system"}, {"content", text}},
       {{"role", "user"}, {"content", " " + text + "\n"}, {"name", text}},
       calling,
       {{"role", "tool"}, {"name", text}, {"content", text + " "}},
       {{"role", "user"}, {"content", text + ", " + text}}});
  conversation.tools = ordered_json::array(
      {ordered_json{{"name", text}, {"description", text}}});
  return conversation;
}

TEST_F(PromptIdsTest, MarkersInMessagesAreText) {
  for (const char* shape : kShapes) {
    const std::vector<std::string> want =
        AddedIn(RenderOk(shape, WithText("harmless")));
    EXPECT_FALSE(want.empty());
    for (const Added& token : kAdded) {
      if (std::string(token.content) == "<think>") continue;
      const MarkedText prompt = RenderOk(shape, WithText(token.content));
      EXPECT_THAT(prompt.bytes(), HasSubstr(token.content));
      EXPECT_EQ(AddedIn(prompt), want) << shape << "\n" << token.content;
    }
  }
}

TEST_F(PromptIdsTest, MarkersMadeOfPartsAreText) {
  // Parts of messages, joined by the template or by each other.
  const auto added = [&](const std::string& source, const std::string& text) {
    return AddedIn(RenderOk(source, OneMessage("user", text)));
  };
  const std::string c = "messages[0].content";
  EXPECT_THAT(added("<|im_{{ " + c + " }}|>", "end"), ElementsAre());
  EXPECT_THAT(added("{{ '<|im_' ~ " + c + " }}", "end|>"), ElementsAre());
  EXPECT_THAT(added("{{ " + c + " }}end|>", "<|im_"), ElementsAre());
  EXPECT_THAT(added("{{ " + c + ".split('~')|join }}", "<|im~_end|>"),
              ElementsAre());
  EXPECT_THAT(added("{{ " + c + ".replace('~', '') }}", "<|im~_end|>"),
              ElementsAre());
  EXPECT_THAT(added("{{ " + c + " | upper | lower }}", "<|IM_END|>"),
              ElementsAre());
  EXPECT_THAT(added("{{ " + c + " | from_json }}", "\"<|im_\\u0065nd|>\""),
              ElementsAre());
  EXPECT_THAT(added("{{ " + c + " | replace('A', '<|im_end|>') }}", "A"),
              ElementsAre("<|im_end|>"));
  EXPECT_THAT(added("{{ '<|' ~ messages[0].role ~ '|>' }}", ""),
              ElementsAre("<|user|>"));
  EXPECT_THAT(added("{{ " + c + " }}<|im_end|>", "<|im_end|>"),
              ElementsAre("<|im_end|>"));
  // A template's token begins inside a marker of a message.
  EXPECT_THAT(added("{{ " + c + " }}<|im_end|>", "<|im_end"),
              ElementsAre("<|im_end|>"));
  // An added token that steers nothing counts anywhere.
  EXPECT_THAT(added("{{ " + c + " }}", "<think>"), ElementsAre("<think>"));
}

TEST_F(PromptIdsTest, TextOfOneOriginIsEncodedAsUsual) {
  const std::string text = "a<|im_end|>b<think><\uff5cUser\uff5c>";
  EXPECT_EQ(*tokenizer_->Encode(MarkedText(text, Origin::kTemplate)),
            *tokenizer_->Encode(text));
  EXPECT_THAT(AddedIn(MarkedText(text, Origin::kMessage)),
              ElementsAre("<think>"));
  EXPECT_TRUE(tokenizer_->Encode(MarkedText())->empty());
}

}  // namespace
}  // namespace ringfleet::coordinator
