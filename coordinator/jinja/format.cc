// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/characters.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/integer.h"
#include "coordinator/jinja/operators.h"
#include "coordinator/jinja/print.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

constexpr int64_t kMaxWidth = 100'000;
constexpr int64_t kMaxPrecision = 100;

// How one value is shown: [fill align] [sign] [#] [0] [width] [,] [.precision]
// [type]
struct FieldFormat {
  Text fill = Text(" ", Origin::kTemplate);
  char align = '\0';  // < > ^ or = (between sign and digits), \0: none.
  char sign = '-';    // - + or a blank.
  bool alternate = false;
  char grouping = '\0';
  int64_t width = 0;
  int64_t precision = -1;  // -1: none.
  char type = '\0';
};

absl::Status BadFormat(absl::string_view format, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("format \"", format, "\": ", problem));
}

// Reads a number at `*at`. Returns -1 if there is none.
absl::StatusOr<int64_t> ReadCount(absl::string_view format, size_t* at,
                                  int64_t most) {
  size_t end = *at;
  while (end < format.size() && absl::ascii_isdigit(format[end])) ++end;
  if (end == *at) return -1;
  int64_t count;
  if (!absl::SimpleAtoi(format.substr(*at, end - *at), &count) ||
      count > most) {
    return BadFormat(format, absl::StrCat("want at most ", most));
  }
  *at = end;
  return count;
}

// Pads `body`, which begins with `prefix_size` bytes of sign and prefix.
Text Pad(const Text& body, size_t prefix_size, const FieldFormat& format,
         char default_align) {
  const int64_t pad =
      format.width - static_cast<int64_t>(CountCharacters(body.bytes()));
  if (pad <= 0) return body;
  const char align = format.align == '\0' ? default_align : format.align;
  int64_t before = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
  Text out;
  if (align == '=') out.Append(body.Part(0, prefix_size));
  for (int64_t i = 0; i < before; ++i) out.Append(format.fill);
  out.Append(align == '=' ? body.Part(prefix_size) : body);
  for (int64_t i = before; i < pad; ++i) out.Append(format.fill);
  return out;
}

std::string Grouped(const std::string& digits, size_t size, char separator) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string DigitsOf(Integer integer, int base, bool upper) {
  std::string digits;
  for (; integer != 0; integer /= base) {
    const int digit = static_cast<int>(integer % base);
    digits.push_back((upper ? "0123456789ABCDEF" : "0123456789abcdef")[digit]);
  }
  if (digits.empty()) digits = "0";
  std::reverse(digits.begin(), digits.end());
  return digits;
}

Text ShowInteger(Integer integer, Origin origin, const FieldFormat& format) {
  const char kind = absl::ascii_tolower(format.type);
  const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
  const bool upper = format.type == 'X';
  std::string prefix = integer < 0          ? "-"
                       : format.sign == '-' ? ""
                                            : std::string(1, format.sign);
  if (format.alternate && base != 10) {
    absl::StrAppend(&prefix, "0", std::string(1, format.type));
  }
  std::string digits = DigitsOf(integer < 0 ? -integer : integer, base, upper);
  // A precision is the least number of digits, in percent formats only.
  if (static_cast<int64_t>(digits.size()) < format.precision) {
    digits.insert(0, format.precision - digits.size(), '0');
  }
  if (format.grouping != '\0') {
    digits = Grouped(digits, base == 10 ? 3 : 4, format.grouping);
  }
  return Pad(Text(prefix + digits, origin), prefix.size(), format, '>');
}

Text ShowFloat(double number, Origin origin, const FieldFormat& format) {
  const char type = format.type == '\0' ? 'g' : format.type;
  const int precision =
      static_cast<int>(format.precision < 0 ? 6 : format.precision);
  std::string body;
  if (type == '%') number *= 100;
  const double size = std::abs(number);
  if (!std::isfinite(number)) {
    body = std::isnan(number) ? "nan" : "inf";
    if (absl::ascii_isupper(type)) absl::AsciiStrToUpper(&body);
  } else if (format.type == '\0' && format.precision < 0) {
    body = DoubleText(size);
  } else {
    const char pattern[] = {'%',
                            format.alternate ? '#' : '.',
                            format.alternate ? '.' : '*',
                            format.alternate ? '*'
                            : type == '%'    ? 'f'
                                             : type,
                            format.alternate ? type == '%' ? 'f' : type : '\0',
                            '\0'};
    char buffer[512];
    snprintf(buffer, sizeof(buffer), pattern, precision, size);
    body = buffer;
  }
  if (format.grouping != '\0') {
    const size_t whole =
        std::min(body.find_first_not_of("0123456789"), body.size());
    body =
        Grouped(body.substr(0, whole), 3, format.grouping) + body.substr(whole);
  }
  if (type == '%') body.push_back('%');
  const std::string prefix = std::signbit(number) && !std::isnan(number) ? "-"
                             : format.sign == '-'                        ? ""
                                                  : std::string(1, format.sign);
  return Pad(Text(prefix + body, origin), prefix.size(), format, '>');
}

Text ShowText(const Text& text, const FieldFormat& format, char default_align) {
  if (format.precision < 0) return Pad(text, 0, format, default_align);
  size_t bytes = 0;
  int64_t count = 0;
  for (const absl::string_view character : Characters(text.bytes())) {
    if (count++ == format.precision) break;
    bytes += character.size();
  }
  return Pad(text.Part(0, bytes), 0, format, default_align);
}

// repr(value), which is how a list shows its item.
absl::StatusOr<Text> Representation(const Value& value, Context* context) {
  RF_ASSIGN_OR_RETURN(const Text list,
                      ToText(context->NewList({value}), context));
  return list.Part(1, list.size() - 2);
}

// --- Percent formats.

class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& values, Context* context)
      : format_(*format.AsText()),
        bytes_(format_.bytes()),
        markup_(format.IsMarkup()),
        values_(values),
        context_(context) {
    const List* list = values.AsList();
    tuple_ = list && list->IsTuple() ? list : nullptr;
  }

  absl::StatusOr<Value> Run() {
    size_t begin = 0;
    while (true) {
      const size_t at = bytes_.find('%', begin);
      if (at == absl::string_view::npos) break;
      out_.Append(format_, begin, at - begin);
      begin = at + 1;
      RF_RETURN_IF_ERROR(Field(&begin));
    }
    out_.Append(format_, begin, bytes_.size() - begin);
    const bool mapping = values_.AsDict() || values_.AsList();
    if (tuple_ ? next_ < tuple_->items.size() : !mapping && next_ == 0) {
      return BadFormat(bytes_, "not all values are used");
    }
    return markup_ ? Value::Markup(std::move(out_))
                   : Value::String(std::move(out_));
  }

 private:
  absl::StatusOr<Value> NextValue() {
    if (tuple_ ? next_ >= tuple_->items.size() : next_ > 0) {
      return BadFormat(bytes_, "not enough values");
    }
    ++next_;
    return tuple_ ? tuple_->items[next_ - 1] : values_;
  }

  absl::StatusOr<int64_t> CountOrStar(size_t* at, int64_t most) {
    if (*at < bytes_.size() && bytes_[*at] == '*') {
      ++*at;
      RF_ASSIGN_OR_RETURN(const Value value, NextValue());
      Integer integer;
      if (!value.ToInteger(&integer) || integer < 0 || integer > most) {
        return BadFormat(bytes_, absl::StrCat("want * from 0 to ", most));
      }
      return Clamped(integer);
    }
    return ReadCount(bytes_, at, most);
  }

  // Behind a "%".
  absl::Status Field(size_t* at) {
    absl::optional<Value> named;
    if (*at < bytes_.size() && bytes_[*at] == '(') {
      const size_t close = bytes_.find(')', *at);
      if (close == absl::string_view::npos || values_.AsDict() == nullptr) {
        return BadFormat(bytes_, "a name needs \")\" and a mapping");
      }
      const absl::string_view name = bytes_.substr(*at + 1, close - *at - 1);
      const Value* found = values_.AsDict()->Find(name);
      if (found == nullptr) {
        return BadFormat(bytes_, absl::StrCat("no value \"", name, "\""));
      }
      named = *found;
      *at = close + 1;
    }
    FieldFormat format;
    bool zero = false;
    for (; *at < bytes_.size(); ++*at) {
      const char flag = bytes_[*at];
      if (flag == '-') {
        format.align = '<';
      } else if (flag == '+' || (flag == ' ' && format.sign != '+')) {
        format.sign = flag;
      } else if (flag == '0') {
        zero = true;
      } else if (flag == '#') {
        format.alternate = true;
      } else if (flag != ' ') {
        break;
      }
    }
    RF_ASSIGN_OR_RETURN(const int64_t width, CountOrStar(at, kMaxWidth));
    format.width = std::max<int64_t>(width, 0);
    if (*at < bytes_.size() && bytes_[*at] == '.') {
      ++*at;
      RF_ASSIGN_OR_RETURN(const int64_t precision,
                          CountOrStar(at, kMaxPrecision));
      format.precision = std::max<int64_t>(precision, 0);
    }
    if (*at == bytes_.size()) return BadFormat(bytes_, "an incomplete field");
    format.type = bytes_[(*at)++];
    if (format.type == '%') {
      out_.Append(format_, *at - 1, 1);
      return absl::OkStatus();
    }
    RF_RETURN_IF_ERROR(context_->Work(format.width));
    absl::StatusOr<Value> value = Value();
    if (named.has_value()) {
      value = *std::move(named);
      ++next_;
    } else {
      value = NextValue();
    }
    if (!value.ok()) return value.status();
    if (zero && format.align == '\0' &&
        (value->AsInt() || value->AsDouble() || value->AsBool())) {
      format.fill = Text("0", Origin::kTemplate);
      format.align = '=';
    }
    return Show(*value, format);
  }

  absl::Status Show(const Value& value, FieldFormat format) {
    Integer integer;
    double number;
    if (format.type == 's' || format.type == 'r') {
      RF_ASSIGN_OR_RETURN(Text text, format.type == 's'
                                         ? ToText(value, context_)
                                         : Representation(value, context_));
      if (markup_ && !value.IsMarkup()) text = EscapeHtml(text);
      RF_RETURN_IF_ERROR(context_->Work(text.size()));
      out_.Append(ShowText(text, format, '>'));
    } else if (absl::StrContains("diuxXo", format.type) &&
               value.ToNumber(&number)) {
      const bool decimal = absl::StrContains("diu", format.type);
      if (!value.ToInteger(&integer)) {
        if (!decimal || !(std::abs(number) < 1e18)) {
          return BadFormat(bytes_, "an integer is wanted");
        }
        integer = static_cast<int64_t>(number);
      }
      if (decimal) format.type = 'd';
      out_.Append(ShowInteger(integer, value.origin(), format));
    } else if (absl::StrContains("fFeEgG", format.type) &&
               value.ToNumber(&number)) {
      out_.Append(ShowFloat(number, value.origin(), format));
    } else {
      return BadFormat(bytes_,
                       absl::StrCat("%", std::string(1, format.type), " of a ",
                                    value.TypeName(), " is not supported"));
    }
    return absl::OkStatus();
  }

  const Text& format_;
  const absl::string_view bytes_;
  const bool markup_;
  const Value& values_;
  const List* tuple_;  // Null: one value.
  size_t next_ = 0;    // Values used.
  Context* const context_;
  Text out_;
};

// --- Formats with braces.

class BraceFormatter {
 public:
  BraceFormatter(const Text& format, const Arguments& arguments,
                 Context* context)
      : format_(format),
        bytes_(format.bytes()),
        arguments_(arguments),
        context_(context) {}

  absl::StatusOr<Value> Run() {
    for (size_t at = 0; at < bytes_.size();) {
      const char c = bytes_[at];
      if (c != '{' && c != '}') {
        const size_t end =
            std::min(bytes_.find_first_of("{}", at), bytes_.size());
        out_.Append(format_, at, end - at);
        at = end;
      } else if (at + 1 < bytes_.size() && bytes_[at + 1] == c) {
        out_.Append(format_, at, 1);
        at += 2;
      } else {
        const size_t close = bytes_.find('}', at);
        if (c == '}' || close == absl::string_view::npos) {
          return BadFormat(bytes_, "a single brace");
        }
        RF_RETURN_IF_ERROR(Field(bytes_.substr(at + 1, close - at - 1)));
        at = close + 1;
      }
    }
    return Value::String(std::move(out_));
  }

 private:
  absl::Status Field(absl::string_view field) {
    const size_t colon = std::min(field.find(':'), field.size());
    absl::string_view name = field.substr(0, colon);
    const absl::string_view shown =
        colon < field.size() ? field.substr(colon + 1) : "";
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    RF_ASSIGN_OR_RETURN(Value value, Find(name));
    if (conversion != '\0') {
      if (conversion != 's' && conversion != 'r') {
        return BadFormat(field, "want !s or !r");
      }
      RF_ASSIGN_OR_RETURN(Text text, conversion == 's'
                                         ? ToText(value, context_)
                                         : Representation(value, context_));
      value = Value::String(std::move(text));
    }
    return Show(value, shown);
  }

  absl::StatusOr<Value> Find(absl::string_view name) {
    const size_t first = std::min(name.find_first_of(".["), name.size());
    RF_ASSIGN_OR_RETURN(Value value, Argument(name.substr(0, first)));
    for (size_t at = first; at < name.size();) {
      const bool bracket = name[at] == '[';
      const size_t end = std::min(
          name.find_first_of(bracket ? "]" : ".[", at + 1), name.size());
      const absl::string_view part = name.substr(at + 1, end - at - 1);
      int64_t index;
      if (!bracket) {
        RF_ASSIGN_OR_RETURN(value, Attribute(value, part, context_));
      } else if (absl::SimpleAtoi(part, &index)) {
        RF_ASSIGN_OR_RETURN(value,
                            Subscript(value, Value::Int(index), context_));
      } else {
        RF_ASSIGN_OR_RETURN(value,
                            Subscript(value, Value::Literal(part), context_));
      }
      at = bracket ? end + 1 : end;
    }
    return value;
  }

  absl::StatusOr<Value> Argument(absl::string_view name) {
    size_t position = next_;
    if (name.empty()) {
      ++next_;
    } else if (!absl::SimpleAtoi(name, &position)) {
      for (const auto& keyword : arguments_.keywords) {
        if (keyword.first == name) return keyword.second;
      }
      return BadFormat(bytes_, absl::StrCat("no value \"", name, "\""));
    }
    if (position >= arguments_.positional.size()) {
      return BadFormat(bytes_, absl::StrCat("no value ", position));
    }
    return arguments_.positional[position];
  }

  absl::StatusOr<FieldFormat> Parse(absl::string_view text) const {
    FieldFormat format;
    size_t at = 0;
    const auto is_align = [](absl::string_view part) {
      return part.size() == 1 && absl::StrContains("<>=^", part);
    };
    if (!text.empty()) {
      const size_t fill = Characters(text.substr(0, 4))[0].size();
      if (is_align(text.substr(std::min(fill, text.size()), 1))) {
        format.fill = Text(text.substr(0, fill), Origin::kTemplate);
        format.align = text[fill];
        at = fill + 1;
      } else if (is_align(text.substr(0, 1))) {
        format.align = text[0];
        at = 1;
      }
    }
    const auto take = [&](absl::string_view choices) {
      if (at == text.size() || !absl::StrContains(choices, text[at])) {
        return '\0';
      }
      return text[at++];
    };
    const char sign = take("+- ");
    if (sign != '\0') format.sign = sign;
    format.alternate = take("#") != '\0';
    if (take("0") != '\0' && format.align == '\0') {
      format.fill = Text("0", Origin::kTemplate);
      format.align = '=';
    }
    RF_ASSIGN_OR_RETURN(const int64_t width, ReadCount(text, &at, kMaxWidth));
    format.width = std::max<int64_t>(width, 0);
    format.grouping = take(",_");
    if (take(".") != '\0') {
      RF_ASSIGN_OR_RETURN(format.precision,
                          ReadCount(text, &at, kMaxPrecision));
      if (format.precision < 0) return BadFormat(text, "no precision");
    }
    format.type = take("sdxXobfFeEgG%");
    if (at < text.size()) return BadFormat(text, "not supported");
    return format;
  }

  absl::Status Show(const Value& value, absl::string_view text) {
    RF_ASSIGN_OR_RETURN(FieldFormat format, Parse(text));
    RF_RETURN_IF_ERROR(context_->Work(format.width * format.fill.size()));
    Integer integer;
    double number;
    const bool plain = format.type == '\0' || format.type == 's';
    if (value.AsText() || value.IsUndefined() || text.empty()) {
      if (!plain || (format.align == '=' && !text.empty() && text[0] != '0')) {
        return BadFormat(text, absl::StrCat("not for a ", value.TypeName()));
      }
      RF_ASSIGN_OR_RETURN(const Text shown, ToText(value, context_));
      RF_RETURN_IF_ERROR(context_->Work(shown.size()));
      if (format.align == '=') format.align = '<';
      out_.Append(ShowText(shown, format, '<'));
    } else if (value.ToInteger(&integer) &&
               (format.type == '\0' ||
                absl::StrContains("dxXob", format.type)) &&
               format.precision < 0) {
      if (format.type == '\0') format.type = 'd';
      out_.Append(ShowInteger(integer, value.origin(), format));
    } else if (value.ToNumber(&number) &&
               (absl::StrContains("fFeEgG%", format.type) ||
                (value.AsDouble() && format.type == '\0' &&
                 format.precision < 0))) {
      out_.Append(ShowFloat(number, value.origin(), format));
    } else {
      return BadFormat(text,
                       absl::StrCat("not supported for a ", value.TypeName()));
    }
    return absl::OkStatus();
  }

  const Text& format_;
  const absl::string_view bytes_;
  const Arguments& arguments_;
  size_t next_ = 0;  // The argument of the next {}.
  Context* const context_;
  Text out_;
};

}  // namespace

absl::StatusOr<Value> FormatPercent(const Value& format, const Value& values,
                                    Context* context) {
  RF_RETURN_IF_ERROR(context->Work(format.AsText()->size()));
  return PercentFormatter(format, values, context).Run();
}

absl::StatusOr<Value> FormatBraces(const Text& format,
                                   const Arguments& arguments,
                                   Context* context) {
  RF_RETURN_IF_ERROR(context->Work(format.size()));
  return BraceFormatter(format, arguments, context).Run();
}

}  // namespace ringfleet::coordinator::jinja
