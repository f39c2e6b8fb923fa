// SPDX-License-Identifier: Apache-2.0
// Values of a template. Truth, equality and text are those of Python.
#ifndef RINGFLEET_COORDINATOR_CHAT_JINJA_VALUE_H_
#define RINGFLEET_COORDINATOR_CHAT_JINJA_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator::jinja {

// Limits of one rendering. A DeepSeek template takes about 50 steps for each
// message. 32 MiB of text have about 8 million tokens.
constexpr size_t kMaxSourceBytes = 1 << 20;
constexpr int64_t kMaxSteps = 5'000'000;
constexpr size_t kMaxWorkBytes = 256 << 20;
constexpr size_t kMaxOutputBytes = 32 << 20;
// Limit of nested expressions, statements and values, which bounds recursion.
constexpr int kMaxDepth = 100;

// Counts the work of one rendering.
// Errors: INVALID_ARGUMENT: a limit is exceeded.
class Budget {
 public:
  // Counts one step. Call it before each evaluation, comparison and iteration.
  absl::Status Step();
  // Counts `bytes` bytes. Call it before code builds or searches strings or
  // lists of `bytes` bytes.
  absl::Status Work(size_t bytes);

 private:
  int64_t steps_ = 0;
  size_t work_bytes_ = 0;
};

class Value;

struct Undefined {
  std::string name;  // The missing variable or key, for error messages.
};
struct None {};
struct List {
  std::vector<Value> items;
  int depth;  // 1 + the largest depth of an item.
};
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // In order of insertion.
  absl::flat_hash_map<std::string, size_t> index;    // Index in items, by key.
  int depth;                                         // As for List.

  // Returns null if there is no `key`.
  const Value* Find(absl::string_view key) const;
};
// The variables of a namespace(), the only mutable value. The evaluator owns
// namespaces, so a namespace may hold itself.
struct Namespace {
  absl::flat_hash_map<std::string, Value> attributes;
};
// The variable `loop`.
struct Loop {
  int64_t index0;  // Index of the iteration, from 0.
  int64_t length;  // Number of iterations.
};

// A value of any type. Immutable except for namespaces. Cheap to copy.
class Value {
 public:
  Value() : value_(None{}) {}
  explicit Value(bool b) : value_(b) {}
  explicit Value(int64_t i) : value_(i) {}
  explicit Value(double d) : value_(d) {}
  explicit Value(Namespace* n) : value_(n) {}
  explicit Value(Loop loop) : value_(loop) {}
  // Returns the undefined value of the missing variable or key `name`.
  static Value Missing(absl::string_view name);
  static Value String(std::string text);

  // Return a list or an object, or the value of a JSON document. MakeDict keeps
  // the last of equal keys.
  // Errors: INVALID_ARGUMENT: the value nests deeper than kMaxDepth.
  static absl::StatusOr<Value> MakeList(std::vector<Value> items);
  static absl::StatusOr<Value> MakeDict(
      std::vector<std::pair<std::string, Value>> items);
  static absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json);

  bool IsUndefined() const { return Is<Undefined>(); }
  bool IsNone() const { return Is<None>(); }
  // Return null if the value has another type.
  const bool* AsBool() const { return std::get_if<bool>(&value_); }
  const int64_t* AsInt() const { return std::get_if<int64_t>(&value_); }
  const double* AsDouble() const { return std::get_if<double>(&value_); }
  const std::string* AsString() const { return Shared<std::string>(); }
  const List* AsList() const { return Shared<List>(); }
  const Dict* AsDict() const { return Shared<Dict>(); }
  const Loop* AsLoop() const { return std::get_if<Loop>(&value_); }
  Namespace* AsNamespace() const;
  const Undefined* AsUndefined() const {
    return std::get_if<Undefined>(&value_);
  }
  // Sets `number` and returns true if the value is a bool, int or float.
  // Returns false for other types.
  bool ToNumber(double* number) const;

  bool IsTrue() const;
  // Returns the name of the type for error messages.
  const char* TypeName() const;

  // Returns the text that {{ }} prints, such as "None", "True" or "1.0".
  // Errors: INVALID_ARGUMENT: the value is a list or an object. Templates print
  // them with tojson.
  absl::StatusOr<std::string> ToText() const;

  // Returns the text of Python's json.dumps(ensure_ascii=False). `indent` < 0:
  // one line.
  absl::StatusOr<std::string> ToJson(int64_t indent, Budget* budget) const;

  // Returns the values that a for loop visits: items, keys or characters.
  // Returns no values for the undefined value.
  absl::StatusOr<std::vector<Value>> ToItems(Budget* budget) const;

 private:
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(value_);
  }
  template <typename T>
  const T* Shared() const {
    const auto* shared = std::get_if<std::shared_ptr<const T>>(&value_);
    return shared == nullptr ? nullptr : shared->get();
  }
  static absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json,
                                        int depth);
  absl::Status WriteJson(int64_t indent, int64_t margin, Budget* budget,
                         std::string* out) const;

  std::variant<Undefined, None, bool, int64_t, double,
               std::shared_ptr<const std::string>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, Namespace*, Loop>
      value_;
};

// Return a == b, a < b and item in container. Less takes two numbers or two
// strings. Contains looks for an item of a list, a key of an object or a part
// of a string.
absl::StatusOr<bool> Equal(const Value& a, const Value& b, Budget* budget);
absl::StatusOr<bool> Less(const Value& a, const Value& b, Budget* budget);
absl::StatusOr<bool> Contains(const Value& container, const Value& item,
                              Budget* budget);

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_CHAT_JINJA_VALUE_H_
