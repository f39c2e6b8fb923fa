// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/hostile_requests.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace ringfleet::integration {
namespace {

struct ValidRequest {
  const char* path;
  const char* body;
};
constexpr ValidRequest kValid[] = {
    {"/v1/completions",
     R"({"prompt":"def f(","max_tokens":3,"temperature":0.7,"seed":1})"},
    {"/v1/completions",
     R"({"prompt":[1,2,3],"max_tokens":2,"n":2,"logprobs":2,"echo":true})"},
    {"/v1/completions",
     R"({"prompt":["a","b"],"max_tokens":2,"stream":true,"stop":["x","yz"],)"
     R"("stream_options":{"include_usage":true},"logit_bias":{"5":-3.5}})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"system","content":"s"},{"role":"user",)"
     R"("content":[{"type":"text","text":"hi"}]}],"max_tokens":2,)"
     R"("chat_template_kwargs":{"thinking":true,"a":[1,{"b":null}]}})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"{{ x }}{% for %}"},{"role":)"
     R"("assistant","content":"a","tool_calls":[{"id":"1","type":"function",)"
     R"("function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool",)"
     R"("content":"r","tool_call_id":"1"}],"stream":true,"max_tokens":2,)"
     R"("top_k":5,"min_p":0.1,"repetition_penalty":1.1,"bad_words":["no"]})"},
    {"/tokenize", R"({"prompt":"some text","add_special_tokens":false})"},
    {"/tokenize", R"({"messages":[{"role":"user","content":"x"}]})"},
    {"/detokenize", R"({"tokens":[1,2,3]})"},
    {"/apply-template", R"({"messages":[{"role":"user","content":"x"}]})"},
};

// Text that stands where a body has a value.
constexpr const char* kOddValues[] = {
    "1e999",
    "-1e999",
    "1e-999",
    "-0",
    "-0.0",
    "0.1e1",
    "1E400",
    "99999999999999999999999999",
    "18446744073709551615",
    "9223372036854775808",
    "-9223372036854775809",
    "2147483648",
    "-1",
    "NaN",
    "Infinity",
    "0x10",
    "01",
    "1.",
    ".5",
    "true",
    "null",
    "{}",
    "[]",
    "[[]]",
    R"("")",
    R"("\ud800")",
    R"("\udc00\ud800")",
    R"("\u0000")",
    R"("\x")",
    "\"\xff\xfe\"",
    "\"\xc0\x80\"",
    "\"\xed\xa0\x80\"",
    "\"\xf5\x80\x80\x80\"",
    "\"\xe2\x82\"",
    "\"\t\"",
    R"({"role":"user"})",
    R"([{"type":"image_url"}])",
    R"("<|im_end|>{%- macro a() -%}{{ a() }}")",
    "[1,\"a\",null]"};

// Text that is put in at any place of a request.
constexpr const char* kOddPieces[] = {
    "\r\n",
    "\r\n\r\n",
    "\n\n",
    "\r",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Content-Length: 7\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "Connection: Upgrade, HTTP2-Settings\r\n",
    "Content-Encoding: gzip\r\n",
    "Authorization: Bearer \xff\r\n",
    "X-Request-Id: \x01\x02\r\n",
    " HTTP/1.1",
    "HTTP/2.0",
    "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    "%00",
    "/../..",
    "?",
    "#",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ",",
    ":",
    "\xff",
    "\xc3"};

class RequestDamage {
 public:
  explicit RequestDamage(std::mt19937_64& random) : random_(random) {}

  std::string Request() {
    const ValidRequest& valid = kValid[Below(std::size(kValid))];
    std::string body = valid.body;
    for (size_t i = Below(4); i > 0; --i) DamageBody(body);
    std::string request = Frame(valid.path, body);
    if (Below(3) == 0) {
      for (size_t i = 1 + Below(3); i > 0; --i) DamageBytes(request);
    }
    return request;
  }

  size_t Below(size_t limit) { return random_() % limit; }

 private:
  template <size_t n>
  const char* OneOf(const char* const (&list)[n]) {
    return list[Below(n)];
  }
  size_t Place(const std::string& text) { return Below(text.size() + 1); }

  void DamageBody(std::string& body) {
    switch (Below(6)) {
      case 0:
      case 1:
        return ReplaceValue(body, OneOf(kOddValues));
      case 2:
        return ReplaceValue(body, Nested());
      case 3: {
        const std::string text(Below(kMostHostileBytes / 8), 'x');
        return ReplaceValue(body, absl::StrCat("\"", text, "\""));
      }
      case 4:
        return ReplaceValue(
            body, absl::StrCat("[", Repeated("1,", Below(20'000)), "1]"));
      default:
        return DamageBytes(body);
    }
  }

  // Replaces what follows a colon, up to the next comma or closing bracket.
  void ReplaceValue(std::string& body, const std::string& value) {
    const size_t colon = body.find(':', Place(body));
    if (colon == std::string::npos) return;
    size_t end = body.find_first_of(",}]", colon);
    if (end == std::string::npos) end = body.size();
    body.replace(colon + 1, end - colon - 1, value);
  }

  std::string Nested() {
    const size_t depth = Below(20'000);
    switch (Below(3)) {
      case 0:
        return Repeated("[", depth);
      case 1:
        return absl::StrCat(Repeated("[", depth), Repeated("]", depth));
      default:
        return absl::StrCat(Repeated("{\"a\":", depth), "1",
                            Repeated("}", depth));
    }
  }

  static std::string Repeated(const char* text, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += text;
    return out;
  }

  void DamageBytes(std::string& text) {
    const size_t at = Place(text);
    switch (Below(5)) {
      case 0:
        text.insert(at, OneOf(kOddPieces));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        break;
      case 2:
        text.erase(at, Below(20));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text.insert(at, text.substr(at, Below(200)));
    }
  }

  std::string Frame(const char* path, const std::string& body) {
    const std::string head = absl::StrCat("POST ", path,
                                          " HTTP/1.1\r\nHost: a\r\n"
                                          "Content-Type: application/json\r\n");
    switch (Below(8)) {
      case 0:  // A length that lies.
        return absl::StrCat(
            head, "Content-Length: ",
            Below(2) == 0 ? Below(2 * body.size() + 1) : random_(), "\r\n\r\n",
            body);
      case 1: {  // Chunks, the last of which may lie.
        std::string out =
            absl::StrCat(head, "Transfer-Encoding: chunked\r\n\r\n");
        for (size_t at = 0; at < body.size();) {
          const std::string piece = body.substr(at, 1 + Below(40));
          const size_t told = Below(30) == 0 ? Below(100) : piece.size();
          absl::StrAppend(&out, absl::Hex(told), "\r\n", piece, "\r\n");
          at += piece.size();
          if (out.size() > kMostHostileBytes / 2) break;
        }
        return absl::StrCat(out, Below(4) == 0 ? "" : "0\r\n\r\n");
      }
      default:
        return absl::StrCat(head, "Content-Length: ", body.size(), "\r\n\r\n",
                            body);
    }
  }

  std::mt19937_64& random_;
};

}  // namespace

std::string HostileRequest(std::mt19937_64& random) {
  RequestDamage damage(random);
  std::string requests;
  const size_t pipelined = damage.Below(5) == 0 ? 1 + damage.Below(6) : 1;
  for (size_t i = 0; i < pipelined; ++i) requests += damage.Request();
  requests.resize(std::min(requests.size(), kMostHostileBytes));
  return requests;
}

}  // namespace ringfleet::integration
