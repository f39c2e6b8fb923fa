// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/jinja/compare.h"
#include "coordinator/jinja/integer.h"
#include "coordinator/jinja/print.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::jinja {
namespace {

// Writes a value. The recursion is at most kMaxDepth deep.
class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Context* context)
      : style_(style),
        item_separator_(style.item_separator.value_or(
            style.indent.has_value() ? "," : ", ")),
        key_separator_(style.key_separator.value_or(": ")),
        context_(context) {}

  absl::Status Write(const Value& value, int depth) {
    RF_RETURN_IF_ERROR(context_->Step());
    if (depth > kMaxDepth) return TooDeep();
    if (value.AsText()) return WriteString(*value.AsText());
    if (const List* list = value.AsList()) {
      if (list->kind == List::kList || list->IsTuple()) {
        return WriteList(*list, depth);
      }
    }
    if (const Dict* dict = value.AsDict()) return WriteDict(*dict, depth);
    RF_ASSIGN_OR_RETURN(const std::string text, Scalar(value));
    out_.Append(text, value.origin());
    return absl::OkStatus();
  }

  Text Take() { return std::move(out_); }

 private:
  static absl::StatusOr<std::string> Scalar(const Value& value) {
    if (value.IsNone()) return std::string("null");
    if (value.AsBool()) return std::string(*value.AsBool() ? "true" : "false");
    if (value.AsInt()) return IntegerText(*value.AsInt());
    if (value.AsDouble()) {
      const double number = *value.AsDouble();
      if (std::isnan(number)) return std::string("NaN");
      if (std::isinf(number)) {
        return std::string(number > 0 ? "Infinity" : "-Infinity");
      }
      return DoubleText(number);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", value.TypeName(), " has no JSON form",
                     value.IsUndefined() ? ": " + *value.AsUndefined() : ""));
  }

  absl::Status WriteString(const Text& text) {
    RF_RETURN_IF_ERROR(context_->Work(text.size()));
    out_.Append("\"", text.origin());
    size_t begin = 0;  // Bytes from here stand for themselves.
    for (size_t at = 0; at < text.size();) {
      const Utf8Unit unit =
          NextUtf8(absl::string_view(text.bytes()).substr(at));
      const std::string escape = Escape(unit);
      if (!escape.empty()) {
        out_.Append(text, begin, at - begin);
        out_.Append(escape, text.OriginAt(at));
        begin = at + unit.size;
      }
      at += unit.size;
    }
    out_.Append(text, begin, text.size() - begin);
    out_.Append("\"", text.origin());
    return absl::OkStatus();
  }

  // Empty: the character stands for itself.
  std::string Escape(const Utf8Unit& unit) const {
    const uint32_t c = unit.code_point;
    if (unit.kind != Utf8Unit::kCharacter) return "";
    if (c == '"') return "\\\"";
    if (c == '\\') return "\\\\";
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    if (c == '\b') return "\\b";
    if (c == '\f') return "\\f";
    const auto hex = [](uint32_t unit16) {
      return absl::StrCat("\\u", absl::Hex(unit16, absl::kZeroPad4));
    };
    if (c < 0x20) return hex(c);
    if (c < 0x80 || !style_.ensure_ascii) return "";
    if (c < 0x10000) return hex(c);
    return hex(0xD800 + ((c - 0x10000) >> 10)) +
           hex(0xDC00 + ((c - 0x10000) & 0x3FF));
  }

  absl::Status NewLine(int depth, Origin origin) {
    if (!style_.indent.has_value()) return absl::OkStatus();
    RF_RETURN_IF_ERROR(context_->Work(1 + depth * style_.indent->size()));
    out_.Append("\n", origin);
    for (int i = 0; i < depth; ++i) out_.Append(*style_.indent, origin);
    return absl::OkStatus();
  }

  absl::Status WriteList(const List& list, int depth) {
    if (list.items.empty()) {
      out_.Append("[]", list.origin);
      return absl::OkStatus();
    }
    out_.Append("[", list.origin);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.Append(item_separator_, list.origin);
      RF_RETURN_IF_ERROR(NewLine(depth + 1, list.origin));
      RF_RETURN_IF_ERROR(Write(list.items[i], depth + 1));
    }
    RF_RETURN_IF_ERROR(NewLine(depth, list.origin));
    out_.Append("]", list.origin);
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> items;
    items.reserve(dict.items.size());
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) RF_RETURN_IF_ERROR(SortByKey(&items));
    if (items.empty()) {
      out_.Append("{}", dict.origin);
      return absl::OkStatus();
    }
    out_.Append("{", dict.origin);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.Append(item_separator_, dict.origin);
      RF_RETURN_IF_ERROR(NewLine(depth + 1, dict.origin));
      const Value& key = items[i]->first;
      if (key.AsText()) {
        RF_RETURN_IF_ERROR(WriteString(*key.AsText()));
      } else {
        RF_ASSIGN_OR_RETURN(const std::string text, Scalar(key));
        out_.Append(absl::StrCat("\"", text, "\""), key.origin());
      }
      out_.Append(key_separator_, dict.origin);
      RF_RETURN_IF_ERROR(Write(items[i]->second, depth + 1));
    }
    RF_RETURN_IF_ERROR(NewLine(depth, dict.origin));
    out_.Append("}", dict.origin);
    return absl::OkStatus();
  }

  absl::Status SortByKey(
      std::vector<const std::pair<Value, Value>*>* items) const {
    absl::Status status;
    std::stable_sort(items->begin(), items->end(),
                     [&](const auto* a, const auto* b) {
                       const auto less = Less(a->first, b->first, context_);
                       if (!less.ok()) status = less.status();
                       return less.ok() && *less;
                     });
    return status;
  }

  const JsonStyle& style_;
  const std::string item_separator_, key_separator_;
  Context* const context_;
  Text out_;
};

// Builds a value from the events of nlohmann's SAX parser, or from a document.
class JsonBuilder : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  JsonBuilder(Origin origin, Context* context)
      : origin_(origin), context_(context) {}

  const Value& result() const { return result_; }
  const absl::Status& status() const { return status_; }

  bool null() override { return Add(Value().WithOrigin(origin_)); }
  bool boolean(bool b) override { return Add(Value::Boolean(b, origin_)); }
  bool number_integer(number_integer_t i) override {
    return Add(Value::Int(i, origin_));
  }
  bool number_unsigned(number_unsigned_t i) override {
    return Add(Value::Int(i, origin_));
  }
  // The parser reports integers beyond 64 bits here.
  bool number_float(number_float_t number, const string_t& text) override {
    if (text.find_first_of(".eE") != string_t::npos || text.empty()) {
      return Add(Value::Float(number, origin_));
    }
    const absl::StatusOr<Integer> integer = ParseInteger(text, 10);
    if (!integer.ok()) return Fail(integer.status());
    return Add(Value::Int(*integer, origin_));
  }
  bool string(string_t& text) override {
    const absl::Status status = context_->Work(text.size());
    if (!status.ok()) return Fail(status);
    return Add(Value::String(Text(text, origin_)));
  }
  bool binary(binary_t&) override {
    return Fail(absl::InvalidArgumentError("a binary JSON value"));
  }
  bool start_object(size_t) override {
    Dict dict;
    dict.origin = origin_;
    return Open(Value(context_->New(std::move(dict))));
  }
  bool key(string_t& text) override {
    open_.back().second = text;
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override {
    List list;
    list.origin = origin_;
    return Open(Value(context_->New(std::move(list))));
  }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("malformed JSON at byte ", position)));
  }

 private:
  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  bool Add(Value value) {
    const absl::Status status = context_->Step();
    if (!status.ok()) return Fail(status);
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (List* list = open_.back().first.AsList()) {
      list->items.push_back(std::move(value));
    } else {
      std::string& name = open_.back().second;
      open_.back().first.AsDict()->Set(Dict::StringKey(name),
                                       Value::String(Text(name, origin_)),
                                       std::move(value));
    }
    return true;
  }

  bool Open(Value container) {
    if (open_.size() >= kMaxDepth) return Fail(TooDeep());
    if (!Add(container)) return false;
    open_.emplace_back(std::move(container), std::string());
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const Origin origin_;
  Context* const context_;
  // The arrays and objects around the next value, with the key it will have.
  std::vector<std::pair<Value, std::string>> open_;
  Value result_;
  absl::Status status_;
};

// Reports `json` to `builder`. The recursion is at most kMaxDepth deep, as the
// builder ends it.
bool Report(const nlohmann::ordered_json& json, JsonBuilder* builder) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return builder->null();
    case nlohmann::ordered_json::value_t::boolean:
      return builder->boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return builder->number_integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      return builder->number_unsigned(json.get<uint64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return builder->number_float(json.get<double>(), "");
    case nlohmann::ordered_json::value_t::string: {
      auto text = json.get<std::string>();
      return builder->string(text);
    }
    case nlohmann::ordered_json::value_t::array:
      if (!builder->start_array(json.size())) return false;
      for (const auto& item : json) {
        if (!Report(item, builder)) return false;
      }
      return builder->end_array();
    case nlohmann::ordered_json::value_t::object:
      if (!builder->start_object(json.size())) return false;
      for (const auto& item : json.items()) {
        std::string key = item.key();
        if (!builder->key(key) || !Report(item.value(), builder)) return false;
      }
      return builder->end_object();
    default: {
      nlohmann::ordered_json::binary_t binary;
      return builder->binary(binary);
    }
  }
}

}  // namespace

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style,
                            Context* context) {
  JsonWriter writer(style, context);
  RF_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

absl::StatusOr<Value> ParseJson(const std::string& json, Origin origin,
                                Context* context) {
  RF_RETURN_IF_ERROR(context->Work(json.size()));
  JsonBuilder builder(origin, context);
  if (!nlohmann::ordered_json::sax_parse(json, &builder)) {
    return builder.status();
  }
  return builder.result();
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json,
                               Context* context) {
  JsonBuilder builder(Origin::kMessage, context);
  if (!Report(json, &builder)) return builder.status();
  return builder.result();
}

}  // namespace ringfleet::coordinator::jinja
