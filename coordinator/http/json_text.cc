// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/json_depth.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

using nlohmann::ordered_json;

// Reads a text without building values, and stops at the first limit.
class LimitedJson final : public nlohmann::json_sax<ordered_json> {
 public:
  const std::string& problem() const { return problem_; }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override {
    return Value();
  }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Value(); }
  bool start_object(size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& name) override {
    if (keys_.size() == 1) field_ = name.substr(0, kMaxNameBytes);
    searched_ += keys_.back();
    if (++keys_.back() > kMaxJsonKeys) {
      return Fail(absl::StrCat(Field(), "an object of more than ", kMaxJsonKeys,
                               " keys, want fewer"));
    }
    if (searched_ > kMaxJsonSearch) {
      return Fail(absl::StrCat(Field(), "too many objects of many keys"));
    }
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // 406: a number beyond a double.
    return Fail(absl::StrCat(error.id == 406 ? "a number that is too large"
                                             : "not valid JSON in UTF-8",
                             " at byte ", position));
  }

 private:
  bool Value() {
    if (++values_ <= kMaxJsonValues) return true;
    return Fail(absl::StrCat(Field(), "more than ", kMaxJsonValues,
                             " values, want fewer"));
  }
  bool Enter() {
    if (keys_.size() == static_cast<size_t>(cluster::kMaxJsonDepth)) {
      return Fail(absl::StrCat(Field(), "nested too deeply, want at most ",
                               cluster::kMaxJsonDepth, " levels"));
    }
    keys_.push_back(0);
    return Value();
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }
  bool Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  // Names the body's field that is being read.
  std::string Field() const {
    return field_.empty() ? "" : absl::StrCat(field_, ": ");
  }

  static constexpr size_t kMaxNameBytes = 40;

  size_t values_ = 0;
  size_t searched_ = 0;       // Keys, by all keys that come after them.
  std::vector<size_t> keys_;  // By open object or array.
  std::string field_;
  std::string problem_;
};

// Returns true for a character beyond ASCII that a literal has as an escape:
// control characters, which terminals obey, and U+2028 and U+2029, at which,
// as at U+0085, some clients end a line. Python's str.splitlines, and with it
// httpx, cuts JSON Lines and events there.
bool IsWideControl(uint32_t code_point) {
  return code_point < 0xA0 || code_point == 0x2028 || code_point == 0x2029;
}

}  // namespace

absl::StatusOr<ordered_json> ParseJsonBody(absl::string_view body) {
  LimitedJson limited;
  if (!ordered_json::sax_parse(body.begin(), body.end(), &limited)) {
    return absl::InvalidArgumentError(
        absl::StrCat("body: ", limited.problem()));
  }
  auto json = ordered_json::parse(body.begin(), body.end(), nullptr,
                                  /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("body: not a JSON object, want one");
  }
  return json;
}

void AppendJsonString(absl::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x80) {
      const Utf8Unit unit = NextUtf8(text.substr(i));
      if (unit.kind != Utf8Unit::kCharacter) {
        AppendUtf8(0xFFFD, out);
      } else if (IsWideControl(unit.code_point)) {
        absl::StrAppend(out, "\\u",
                        absl::Hex(unit.code_point, absl::kZeroPad4));
      } else {
        absl::StrAppend(out, text.substr(i, unit.size));
      }
      i += unit.size;
      continue;
    }
    ++i;
    switch (byte) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      default:
        if (byte < 0x20 || byte == 0x7F) {
          out->append("\\u00");
          out->push_back(kHex[byte >> 4]);
          out->push_back(kHex[byte & 15]);
        } else {
          out->push_back(static_cast<char>(byte));
        }
    }
  }
  out->push_back('"');
}

void AppendJsonStringOrNull(absl::string_view text, std::string* out) {
  if (text.empty()) {
    out->append("null");
  } else {
    AppendJsonString(text, out);
  }
}

void AppendJsonFloat(float value, std::string* out) {
  if (std::isnan(value)) {
    out->append("null");
    return;
  }
  if (std::isinf(value)) value = value < 0 ? -9999.0F : 9999.0F;
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + 32, value);
  out->append(digits, static_cast<size_t>(end - digits));
}

}  // namespace ringfleet::coordinator
