// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "coordinator/jinja/context.h"
#include "tests/testing/sanitized.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::CivilSecond kNow(2026, 3, 7, 4, 5, 9);

absl::StatusOr<std::string> RenderConversation(
    const std::string& source, const Conversation& conversation) {
  const auto parsed = ChatTemplate::Parse(source, "<s>", "</s>");
  if (!parsed.ok()) return parsed.status();
  const auto prompt = (*parsed)->Render(conversation, kNow);
  if (!prompt.ok()) return prompt.status();
  return prompt->bytes();
}

Conversation Talk(const json& messages, bool add_generation_prompt = false,
                  const json& variables = {}) {
  Conversation conversation;
  conversation.messages = messages;
  conversation.add_generation_prompt = add_generation_prompt;
  conversation.variables = variables;
  return conversation;
}

// Renders with `variables`, or "ERROR message".
std::string Render(const std::string& source, const json& variables = {}) {
  const auto text =
      RenderConversation(source, Talk(json::array(), false, variables));
  if (text.ok()) return *text;
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  return "ERROR " + std::string(text.status().message());
}

// The value of an expression, as JSON.
std::string Eval(const std::string& expression, const json& variables = {}) {
  return Render("{{ (" + expression + ")|tojson }}", variables);
}

json Message(const std::string& role, const json& content) {
  return {{"role", role}, {"content", content}};
}

TEST(ChatTemplateTest, PlainTemplateOfDeepSeekV2) {
  const std::string source =
      "{% if not add_generation_prompt is defined %}{% set "
      "add_generation_prompt = false %}{% endif %}{{ bos_token }}{% for "
      "message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + "
      "message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' "
      "%}{{ 'Assistant: ' + message['content'] + eos_token }}{% elif "
      "message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif "
      "%}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif "
      "%}";
  const json messages = {Message("system", "S"), Message("user", "Hi"),
                         Message("assistant", "Yo"), Message("user", "2")};
  EXPECT_EQ(*RenderConversation(source, Talk(messages, true)),
            "<s>S\n\nUser: Hi\n\nAssistant: Yo</s>User: 2\n\nAssistant:");
  EXPECT_EQ(*RenderConversation(source, Talk(json::array())), "<s>");
}

// System prompts gathered in a namespace, thoughts cut off, tool calls opened
// once: the shape of the R1 and V3.1 templates.
TEST(ChatTemplateTest, ReasoningTemplateWithTools) {
  const std::string source = R"({%- if not thinking is defined -%}
  {%- set thinking = false -%}
{%- endif -%}
{%- set ns = namespace(is_first=true, system='', tools_open=false) -%}
{%- for message in messages -%}
  {%- if message['role'] == 'system' -%}
    {%- if ns.is_first -%}
      {%- set ns.system = ns.system + message['content'] -%}
      {%- set ns.is_first = false -%}
    {%- else -%}
      {%- set ns.system = ns.system + '\n\n' + message['content'] -%}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {{ '<U>' + message['content'] }}
  {%- endif -%}
  {%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none -%}
    {%- for tool in message['tool_calls'] -%}
      {%- if not ns.tools_open -%}
        {%- if message['content'] is none -%}
          {{ '<A><calls>' + tool['function']['name'] + '|' + tool['function']['arguments'] }}
        {%- else -%}
          {{ '<A>' + message['content'] + '<calls>' + tool['function']['name'] + '|' + tool['function']['arguments'] }}
        {%- endif -%}
        {%- set ns.tools_open = true -%}
      {%- else -%}
        {{ '\n' + tool['function']['name'] + '|' + tool['function']['arguments'] }}
      {%- endif -%}
    {%- endfor -%}
    {{ '</calls>' + eos_token }}
  {%- endif -%}
  {%- if message['role'] == 'assistant' and 'tool_calls' not in message -%}
    {%- set content = message['content'] -%}
    {%- if '</think>' in content -%}
      {%- set content = content.split('</think>', 1)[1] -%}
    {%- endif -%}
    {{ '<A>' + content + eos_token }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<A>' }}{{ '<think>' if thinking else '</think>' }}
{%- endif -%})";
  const auto call = [](const std::string& name) -> json {
    return {{"function", {{"name", name}, {"arguments", "{}"}}}};
  };
  json calling = Message("assistant", nullptr);
  calling["tool_calls"] = {call("f"), call("g")};
  const json messages = {Message("system", "A"), Message("user", "1"),
                         Message("assistant", "<think>x</think>\n\ny</think>"),
                         Message("system", "B"), calling};
  EXPECT_EQ(*RenderConversation(source, Talk(messages, true)),
            "<s>A\n\nB<U>1<A>\n\ny</think></s><A><calls>f|{}\ng|{}</calls></s>"
            "<A></think>");
  EXPECT_EQ(*RenderConversation(
                source, Talk(json::array(), true, {{"thinking", true}})),
            "<s><A><think>");
}

TEST(ChatTemplateTest, BlocksAreTrimmedAsChatTemplatesExpect) {
  EXPECT_EQ(Render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Render("a {% if true %} b {% endif %} c"), "a  b  c");
  EXPECT_EQ(Render("a\n  {{ 1 }}\nb"), "a\n  1\nb");
  EXPECT_EQ(Render("a \n {%- if true -%} \n b {%- endif -%} c"), "abc");
  EXPECT_EQ(Render("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(Render("a\n {#- x -#} \n b"), "ab");
  EXPECT_EQ(Render("  {# x #}\n  b"), "  b");
  EXPECT_EQ(Render("a\n  {%+ if true %}b{% endif +%}\nc"), "a\n  b\nc");
  EXPECT_EQ(Render("{% if true %}\n  {% if true %}\nx\n{% endif %}{% endif %}"),
            "x\n");
  EXPECT_EQ(Render("a\r\nb\r\n"), "a\nb");
  EXPECT_EQ(Render("a\n\n"), "a\n");
  EXPECT_EQ(Render("{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}"), "}}1");
  EXPECT_EQ(Render("{ {a} %} #}"), "{ {a} %} #}");
}

TEST(ChatTemplateTest, ValuesPrintAsInPython) {
  EXPECT_EQ(Render("{{ none }} {{ true }} {{ 1.0 }} {{ missing }} {{ -7 }}"),
            "None True 1.0  -7");
  EXPECT_EQ(Render("{{ 1e16 }} {{ 100000.0 }} {{ 0.1 }} {{ 0.00001 }}"),
            "1e+16 100000.0 0.1 1e-05");
  EXPECT_EQ(Render("{{ 1 ~ 'a' ~ none }}"), "1aNone");
  EXPECT_EQ(Render("{{ 'a' 'b' }}{{ \"\\u4e16\\x41\\n\\q\" }}"),
            "ab\u4e16A\n\\q");
}

// A tool's prompt is what the model was trained on only in this order.
TEST(ChatTemplateTest, ObjectsKeepTheOrderOfTheirKeys) {
  const auto tools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters":
           {"type": "object", "properties": {"city": {}, "at": {"b": 1,
           "a": [{"z": 0, "y": 0}]}}}}}])");
  const auto render = [&](const std::string& source) {
    Conversation conversation;
    conversation.messages = nlohmann::ordered_json::array(
        {nlohmann::ordered_json::parse(R"({"role": "user", "content": "x"})")});
    conversation.tools = tools;
    return RenderConversation(source, conversation).value();
  };
  EXPECT_EQ(render("{{ tools|tojson }}"),
            R"([{"type": "function", "function": {"name": "f", )"
            R"("parameters": {"type": "object", "properties": )"
            R"({"city": {}, "at": {"b": 1, "a": [{"z": 0, "y": 0}]}}}}}])");
  const std::string properties = "tools[0].function.parameters.properties";
  EXPECT_EQ(render("{% for p in " + properties + " %}{{ p }},{% endfor %}"),
            "city,at,");
  EXPECT_EQ(render("{% for n, v in " + properties +
                   "|items %}{{ n }}={{ v|tojson }},{% endfor %}"),
            R"(city={},at={"b": 1, "a": [{"z": 0, "y": 0}]},)");
  EXPECT_EQ(render("{{ tools[0].keys()|join(' ') }} {{ messages[0]|list|join("
                   "' ') }}"),
            "type function role content");
  EXPECT_EQ(render("{{ {'b': 1, 'a': 2}|tojson(indent=1) }}"),
            "{\n \"b\": 1,\n \"a\": 2\n}");
}

TEST(ChatTemplateTest, OperatorsBindAndCountAsInPython) {
  EXPECT_EQ(Eval("1 + 2 * 3 - 4"), "3");
  EXPECT_EQ(Eval("[7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 / 2, 7 % -3]"),
            "[3, -4, 1, 2, 3.5, -2]");
  EXPECT_EQ(Eval("[7.5 // 2, -7.5 % 2, 2 * 1.5, -1.5]"),
            "[3.0, 0.5, 3.0, -1.5]");
  EXPECT_EQ(Eval("'ab' * 2 + 'c'"), "\"ababc\"");
  EXPECT_EQ(Eval("[1] + [2, 'x']"), "[1, 2, \"x\"]");
  EXPECT_EQ(Eval("not 1 == 2 and 2 < 3 <= 3 or false"), "true");
  EXPECT_EQ(Eval("0 or 'x'"), "\"x\"");
  EXPECT_EQ(Eval("'' and 1"), "\"\"");
  EXPECT_EQ(Eval("1 == 1.0 and 'a' != 1 and none == none"), "true");
  EXPECT_EQ(Eval("'b' in 'abc' and 'd' not in ['a'] and 'k' in {'k': 1}"),
            "true");
  EXPECT_EQ(Eval("1 in (1, 2) and 3 not in (1, 2)"), "true");
  EXPECT_EQ(Eval("'a' if false else 'b' if false else 'c'"), "\"c\"");
  EXPECT_EQ(Render("{{ 'x' if false }}"), "");
  EXPECT_EQ(Eval("[1, {'a': [2]}] == [1, {'a': [2]}]"), "true");
  EXPECT_EQ(Eval("-9223372036854775807 - 1"), "-9223372036854775808");
}

TEST(ChatTemplateTest, SubscriptsAndSlicesCountCharacters) {
  const json variables = {{"s", "a\u4e16b\U0001F642"}, {"l", {0, 1, 2, 3, 4}}};
  EXPECT_EQ(Eval("[s[1], s[-1], s[1:3], s[::-1], s|length]", variables),
            "[\"\u4e16\", \"\U0001F642\", \"\u4e16b\", "
            "\"\U0001F642b\u4e16a\", 4]");
  EXPECT_EQ(Eval("[l[1:], l[:-1], l[::2], l[-2:], l[3:1], l[::-2]]", variables),
            "[[1, 2, 3, 4], [0, 1, 2, 3], [0, 2, 4], [3, 4], [], [4, 2, 0]]");
  EXPECT_EQ(
      Eval("[l[-100:2], l[2:100], l[100:], l[:0:-1], l[0::100]]", variables),
      "[[0, 1], [2, 3, 4], [], [4, 3, 2, 1], [0]]");
  EXPECT_EQ(Render("{{ l[7] is defined }} {{ s[9] }}", variables), "False ");
  EXPECT_EQ(Eval("l[-9223372036854775807:9223372036854775807:"
                 "9223372036854775807]",
                 variables),
            "[0]");
}

TEST(ChatTemplateTest, StringMethods) {
  EXPECT_EQ(Eval("'a,b,c'.split(',')"), "[\"a\", \"b\", \"c\"]");
  EXPECT_EQ(Eval("'a,b,c'.split(',', 1)"), "[\"a\", \"b,c\"]");
  EXPECT_EQ(Eval("' a  b '.split()"), "[\"a\", \"b\"]");
  EXPECT_EQ(Eval("' a  b  c '.split(none, 1)"), "[\"a\", \"b  c \"]");
  EXPECT_EQ(Eval("'abc'.split('</think>')[-1]"), "\"abc\"");
  EXPECT_EQ(Eval("[' a '.strip(), ' a '.lstrip(), ' a '.rstrip()]"),
            "[\"a\", \"a \", \" a\"]");
  EXPECT_EQ(Eval("'\\u4e16xa\\u4e16'.strip('\\u4e16x')"), "\"a\"");
  EXPECT_EQ(Eval("['abc'.startswith('ab'), 'abc'.endswith(('x', 'c'))]"),
            "[true, true]");
  EXPECT_EQ(Eval("'aXbXc'.replace('X', '--')"), "\"a--b--c\"");
  EXPECT_EQ(Eval("'aXbXc'.replace('X', '', 1)"), "\"abXc\"");
  EXPECT_EQ(Eval("['aB'.upper(), 'aB'.lower()]"), "[\"AB\", \"ab\"]");
}

TEST(ChatTemplateTest, FiltersAndTests) {
  const json variables = {{"d", {{"b", 1}, {"a", {true, nullptr}}}},
                          {"f", 0.5}};
  EXPECT_EQ(Render("{{ d|tojson }} {{ f|tojson }}", variables),
            "{\"a\": [true, null], \"b\": 1} 0.5");
  EXPECT_EQ(Render("{{ {'z': [1], 'e': []}|tojson(indent=2) }}"),
            "{\n  \"z\": [\n    1\n  ],\n  \"e\": []\n}");
  EXPECT_EQ(Render("{{ 'q\"\\\\\\n\\x01\\u4e16'|tojson }}"),
            "\"q\\\"\\\\\\n\\u0001\u4e16\"");
  EXPECT_EQ(Render("{{ [1, 'a']|join(', ') }}{{ 'ab'|join('-') }}"), "1, aa-b");
  EXPECT_EQ(Render("{{ x|default('y') }}{{ ''|default('z', true) }}{{ "
                   "''|default('z') }}"),
            "yz");
  EXPECT_EQ(Render("{{ ' a '|trim }}{{ 5|string + '!' }}"), "a5!");
  EXPECT_EQ(Render("{{ [1, 2]|first }}{{ 'ab'|last }}{{ []|first }}"), "1b");
  EXPECT_EQ(Render("{{ d|length }}{{ missing|length }}", variables), "20");
  EXPECT_EQ(Eval("[d is mapping, d is iterable, 'a' is string, none is none, "
                 "1 is not none, x is defined, x is not defined, 1 is string]",
                 variables),
            "[true, true, true, true, true, false, true, false]");
  EXPECT_EQ(Eval("not x is defined"), "true");
  EXPECT_EQ(Eval("d.get('q', 4) + d.get('b')", variables), "5");
}

TEST(ChatTemplateTest, LoopsKnowTheirPosition) {
  const json variables = {{"l", {"a", "b", "c"}}, {"d", {{"x", 1}, {"y", 2}}}};
  EXPECT_EQ(Render("{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ i "
                   "}}{% if loop.first %}F{% endif %}{% if not loop.last "
                   "%},{% endif %}{% endfor %}",
                   variables),
            "10aF,21b,32c");
  EXPECT_EQ(Render("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
                   variables),
            "x=1;y=2;");
  EXPECT_EQ(Render("{% for i in l if i != 'b' %}{{ loop.index }}{{ i }}{% "
                   "else %}none{% endfor %}",
                   variables),
            "1a2c");
  EXPECT_EQ(Render("{% for i in l if i == 'q' %}x{% else %}none{% endfor %}",
                   variables),
            "none");
  EXPECT_EQ(Render("{% for i in missing %}x{% endfor %}{% for k in d %}{{ k "
                   "}}{% endfor %}{% for c in 'hi' %}{{ c }}.{% endfor %}",
                   variables),
            "xyh.i.");
  EXPECT_EQ(Render("{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor "
                   "%}{{ loop.index }} {% endfor %}",
                   variables),
            "1231 1232 1233 ");
}

TEST(ChatTemplateTest, SetInALoopLastsOneIterationButNotInANamespace) {
  const json variables = {{"l", {1, 2}}};
  EXPECT_EQ(Render("{% set x = 0 %}{% set ns = namespace(x=0) %}{% for i in l "
                   "%}{% set x = x + i %}{% set ns.x = ns.x + i %}{{ x }}{% "
                   "endfor %}|{{ x }}{{ ns.x }}",
                   variables),
            "12|03");
  EXPECT_EQ(Render("{% if true %}{% set y = 1 %}{% endif %}{{ y }}"), "1");
}

TEST(ChatTemplateTest, ErrorsNameTheConstructAndTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "line 2: block \"{% include %}\""},
      {"\n\n{{ x|nope }}", "line 3: filter \"nope\""},
      {"{{ x is nope }}", "test \"nope\""},
      {"{{ 1 is divisibleby }}", "\"divisibleby\" with 0 arguments, want 1"},
      {"{{ 'a'.nope() }}", "str has no \"nope\""},
      {"{{ lipsum(1) }}", "\"lipsum\" is undefined"},
      {"{{ 'a' + 1 }}", "operator + on str and int"},
      {"{{ 'a' + missing }}", "\"missing\" is undefined"},
      {"{{ missing.x }}", "\"missing\" is undefined"},
      {"{{ missing.x() }}", "\"missing\" is undefined"},
      {"{{ none.split() }}", "NoneType has no \"split\""},
      {"\n{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "line 2: f(): 2 arg"},
      {"{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "argument \"b\""},
      {"{% macro f() %}\n\n{{ 1 + '' }}{% endmacro %}{{ f() }}", "line 3"},
      {"{% break %}", "outside of a loop"},
      {"{{ {}.update({}) }}", "changes a dict"},
      {"{% for a in [1] %}{{ loop([]) }}{% endfor %}", "not recursive"},
      {"{% if true %}", "{% elif or else or endif %}"},
      {"{% endif %}", "endif"},
      {"{% else %}", "else"},
      {"{{ 1", "tag without }}"},
      {"x\n{# y", "line 2: {# without #}"},
      {"{{ 'abc }}", "closing quote"},
      {"{{ (1 }}", "unexpected \"}\""},
      {"{{ 1 2 }}", "\"2\" where \"}}\""},
      {"{{ }}", "expression"},
      {"{{ a[] }}", "empty subscript"},
      {"{{ $ }}", "unexpected character \"$\""},
      {"{{ 99999999999999999999999999999999 }}", "exceeds"},
      {"{{ 10 ** 31 * 10 }}", "exceeds"},
      {"{{ 1 // 0 }}", "by zero"},
      {"{{ 1.0 % 0 }}", "by zero"},
      {"{{ 'a'[::0] }}", "step 0"},
      {"{{ 'a' < 1 }}", "comparison of str with int"},
      {"{{ 1 in 'a' }}", "needs a string"},
      {"{{ 'a'.split('') }}", "empty separator"},
      {"{{ 'a'.split(1, 2, 3) }}", "3 arguments"},
      {"{{ 'a'.replace('a') }}", "\"new\""},
      {"{{ 'a'|tojson(nope=true) }}", "nope"},
      {"{{ '\\ud800' }}", "no Unicode character"},
      {"{% for a, b in [1] %}{% endfor %}", "int has no items"},
      {"{% for a in 1 %}{% endfor %}", "loop over a value of type int"},
      {"{% set x.y = 1 %}", "not a namespace"},
      {"{{ {[]: 2} }}", "a list cannot be a key"},
      {"{{ namespace() |tojson }}", "Namespace"},
  };
  for (const auto& [source, problem] : cases) {
    EXPECT_THAT(Render(source), AllOf(HasSubstr("ERROR chat template line "),
                                      HasSubstr(problem)))
        << source;
  }
}

TEST(ChatTemplateTest, RaiseExceptionIsTheError) {
  EXPECT_THAT(Render("\n{{ raise_exception('roles must ' + 'alternate') }}"),
              HasSubstr("line 2: roles must alternate"));
}

TEST(ChatTemplateTest, WrongVariablesAreNamed) {
  EXPECT_EQ(RenderConversation("", Talk({})).status().message(),
            "messages: a JSON null, want an array");
  EXPECT_EQ(Render("", 5),
            "ERROR template variables: a JSON number, want an object");
  json deep = 1;
  for (int i = 0; i < 200; ++i) deep = json::array({deep});
  EXPECT_THAT(Render("", {{"tools", deep}}), HasSubstr("tools: a value nests"));
  EXPECT_EQ(Render("{{ x }}", {{"x", ~uint64_t{0}}}), "18446744073709551615");
}

TEST(ChatTemplateTest, ToolsAreNoneUnlessGiven) {
  EXPECT_EQ(Render("{{ tools is none }}{{ documents is none }}"), "TrueTrue");
  EXPECT_EQ(Render("{{ tools[0].name }}", {{"tools", {{{"name", "f"}}}}}), "f");
}

TEST(ChatTemplateTest, AnAnswerIsContinuedWhereItsTextEnds) {
  const auto continued = [](const std::string& source, const json& content) {
    Conversation conversation =
        Talk({Message("user", "Hi"), Message("assistant", content)});
    conversation.continue_final_message = true;
    const auto text = RenderConversation(source, conversation);
    return text.ok() ? *text : "ERROR " + std::string(text.status().message());
  };
  const std::string source =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}</end>{% endfor %}";
  EXPECT_EQ(continued(source, "Yes, "), "[user]Hi</end>[assistant]Yes, ");
  // The template's own "e" is not the message's.
  EXPECT_EQ(continued(source, "e"), "[user]Hi</end>[assistant]e");
  const std::string trims =
      "{% for m in messages %}{{ m.content | trim }}</end>{% endfor %}";
  EXPECT_EQ(continued(trims, " Yes, "), "Hi</end>Yes,");
  const std::string parts =
      "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}."
      "{% endfor %}";
  EXPECT_EQ(continued(parts, {{{"type", "text"}, {"text", "a"}},
                              {{"type", "text"}, {"text", "b"}}}),
            ".ab");
  EXPECT_THAT(continued(source, " "), HasSubstr("has no text"));
  EXPECT_THAT(continued(source, nullptr), HasSubstr("has no text"));
  EXPECT_THAT(continued("{{ messages[0].content }}", "Yes"),
              HasSubstr("does not print the last message"));
  Conversation both = Talk(json::array({Message("assistant", "x")}), true);
  both.continue_final_message = true;
  EXPECT_THAT(RenderConversation(source, both).status().message(),
              HasSubstr("exclude each other"));
}

TEST(ChatTemplateTest, HostileTemplatesAreStopped) {
  json many = json::array();
  for (int i = 0; i < 3000; ++i) many.push_back(i);
  const json l = {{"l", many}};
  EXPECT_THAT(Render("{% set ns = namespace(s='x') %}{% for i in l %}{% set "
                     "ns.s = ns.s + ns.s %}{% endfor %}",
                     l),
              HasSubstr("bytes of values"));
  EXPECT_THAT(Render("{% set ns = namespace(s=[1]) %}{% for i in l %}{% set "
                     "ns.s = ns.s + ns.s %}{% endfor %}",
                     l),
              HasSubstr("bytes of values"));
  EXPECT_THAT(Render("{% set s = 'x' * 1000000 %}{% for i in l %}{{ s }}{% "
                     "endfor %}",
                     l),
              HasSubstr("prints more than"));
  EXPECT_THAT(Render("{% set s = 'x' * 1000000 %}{% for i in l %}{{ s[5] }}{% "
                     "endfor %}",
                     l),
              HasSubstr("bytes of values"));
  EXPECT_THAT(Render("{{ 'x' * 9223372036854775807 }}"), HasSubstr("repeated"));
  EXPECT_THAT(Render("{{ [1] * 10 ** 9 }}"), HasSubstr("repeated"));
  EXPECT_THAT(Render("{{ range(10 ** 9) }}"),
              HasSubstr("range() of 1000000000 integers, want at most"));
  EXPECT_THAT(Render("{{ 'x'.ljust(10 ** 9) }}"), HasSubstr("bytes of values"));
  EXPECT_THAT(Render("{{ '%999999999d' % 1 }}"), HasSubstr("want at most"));
  EXPECT_THAT(Render("{{ [1]|batch(10 ** 9, 0) }}"),
              HasSubstr("bytes of values"));
  EXPECT_THAT(Render("{{ 10 ** 10 ** 9 }}"), HasSubstr("exceeds"));
  EXPECT_THAT(Render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
              HasSubstr("deeper than"));
  EXPECT_THAT(Render("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
              HasSubstr("deeper than"));
  EXPECT_THAT(Render("{{ ['a']|map('map', *(['map'] * 1300))|list }}"),
              HasSubstr("deeper than"));
  EXPECT_THAT(Render("{% set a = [] %}{% set _ = a.append(a) %}{{ a }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(Render("{% set a = [] %}{% set _ = a.append(a) %}{{ a|tojson }}"),
              HasSubstr("nests deeper"));
  EXPECT_EQ(Render("{% set a = [] %}{% set _ = a.append(a) %}{{ a == a }}"),
            "True");
  EXPECT_THAT(Render("{{ ('[' * 1000)|from_json }}"),
              HasSubstr("nests deeper"));
  EXPECT_THAT(Render("{% set ns = namespace(v=1) %}{% for i in l %}{% set "
                     "ns.v = [ns.v] %}{% endfor %}{{ ns.v }}",
                     l),
              HasSubstr("nests deeper"));
  // A namespace that holds itself, and values that double with each level.
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me "
                   "is defined }}"),
            "True");
  // The limit on steps, at tens of seconds each under a sanitizer.
  if (ringfleet::testing::kSanitized) return;
  EXPECT_THAT(
      Render("{% for i in l %}{% for j in l %}{% endfor %}{% endfor %}", l),
      HasSubstr("steps"));
  const std::string doubling =
      "{% set ns = namespace(a=1, b=1) %}{% for i in l[:60] %}{% set ns.a = "
      "[ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";
  EXPECT_THAT(Render(doubling + "{{ ns.a == ns.b }}", l), HasSubstr("steps"));
  EXPECT_THAT(Render(doubling + "{{ ns.a|tojson }}", l), HasSubstr("steps"));
}

TEST(ChatTemplateTest, DeepTemplatesAreStopped) {
  const auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const int count : {200, 50000}) {
    EXPECT_THAT(
        Render("{{ " + repeat("(", count) + "1" + repeat(")", count) + " }}"),
        HasSubstr("nesting deeper"));
    EXPECT_THAT(Render("{{ " + repeat("not ", count) + "1 }}"),
                HasSubstr("nesting deeper"));
    EXPECT_THAT(Render("{{ -" + repeat(" -", count) + "1 }}"),
                HasSubstr("nesting deeper"));
    EXPECT_THAT(Render("{{ 1" + repeat(" + 1", count) + " }}"),
                HasSubstr("nesting deeper"));
    EXPECT_THAT(Render("{{ x" + repeat("|trim", count) + " }}"),
                HasSubstr("nesting deeper"));
    EXPECT_THAT(Render("{{ x" + repeat(".a", count) + " }}"),
                HasSubstr("nesting deeper"));
    EXPECT_THAT(Render("{{ 1" + repeat(" if 1 else 1", count) + " }}"),
                HasSubstr("nesting deeper"));
  }
  EXPECT_THAT(Render(repeat("{% if 1 %}", 50000)), HasSubstr("nesting deeper"));
  EXPECT_THAT(Render(std::string(jinja::kMaxSourceBytes + 1, 'x')),
              HasSubstr("want at most"));
  EXPECT_EQ(Render("{{ 'x'" + repeat(" + 'x'", 60) + " }}"), repeat("x", 61));
}

// Templates made of fragments in any order: most are errors, none may crash.
TEST(ChatTemplateTest, RandomTemplatesNeverCrash) {
  const std::vector<std::string> fragments = {
      "{{",     "}}",      "{%",         "%}",         "{%-",     "-%}",
      "{#",     "#}",      " if ",       " else ",     " for ",   " in ",
      " set ",  " endif ", " endfor ",   "x",          "l",       "[",
      "]",      "(",       ")",          ".",          ":",       "|",
      "tojson", "length",  " is ",       " not ",      "none",    "'a'",
      "\"",     "1",       "-",          "+",          "*",       "~",
      "%",      "==",      "<",          "=",          ",",       "\n",
      " ",      "ns",      "namespace(", "loop.index", "{",       "}",
      "\\",     "\xFF",    "\u4e16",     "split",      "items()", "1.5"};
  std::mt19937 random(9);
  int rendered = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string source;
    const int length = random() % 16;
    for (int i = 0; i < length; ++i) {
      source += fragments[random() % fragments.size()];
    }
    // Half of them inside a tag, to get past the lexer.
    if (random() % 2) source = "{{" + source + "}}";
    const auto text = RenderConversation(
        source, Talk(json::array(), true, {{"l", {1, "b", {2}}}}));
    rendered += text.ok();
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace ringfleet::coordinator
