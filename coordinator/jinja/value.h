// SPDX-License-Identifier: Apache-2.0
// Values of a template, with the types of Python.
#ifndef RINGFLEET_COORDINATOR_JINJA_VALUE_H_
#define RINGFLEET_COORDINATOR_JINJA_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/strings/string_view.h"
#include "coordinator/tokenizer/marked_text.h"

namespace ringfleet::coordinator::jinja {

using Text = MarkedText;

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Macro;
struct Method;
struct Function;
struct Scope;  // expressions.h
struct Stmt;   // ast.h

// Integers of Python are unbounded, these are bounded by kMaxInteger.
using Integer = absl::int128;
constexpr Integer kMaxInteger = absl::MakeInt128(int64_t{1} << 40, 0);

// A value of any type. Cheap to copy. Lists, dicts and the other objects live
// as long as the Context that made them.
class Value {
 public:
  Value() : value_(None{}) {}
  explicit Value(List* list) : value_(list) {}
  explicit Value(Dict* dict) : value_(dict) {}
  explicit Value(Namespace* space) : value_(space) {}
  explicit Value(Loop* loop) : value_(loop) {}
  explicit Value(Macro* macro) : value_(macro) {}
  explicit Value(Method* method) : value_(method) {}
  explicit Value(Function* function) : value_(function) {}
  static Value Boolean(bool b, Origin origin = Origin::kTemplate);
  static Value Int(Integer i, Origin origin = Origin::kTemplate);
  static Value Float(double d, Origin origin = Origin::kTemplate);
  static Value String(Text text);
  // A string of markupsafe.Markup, which escapes the strings it is joined with.
  static Value Markup(Text text);
  static Value Literal(absl::string_view text) {
    return String(Text(text, Origin::kTemplate));
  }
  // Returns an undefined value. `problem` is the error of its use.
  static Value Undefined(std::string problem);
  // Returns the undefined value of the variable `name`.
  static Value MissingVariable(absl::string_view name);

  bool IsNone() const { return std::holds_alternative<None>(value_); }
  bool IsUndefined() const { return AsUndefined() != nullptr; }
  bool IsMarkup() const { return markup_; }
  // Return null if the value has another type.
  const std::string* AsUndefined() const;
  const bool* AsBool() const { return std::get_if<bool>(&value_); }
  const Integer* AsInt() const { return std::get_if<Integer>(&value_); }
  const double* AsDouble() const { return std::get_if<double>(&value_); }
  const Text* AsText() const;
  // Returns the bytes of a string.
  const std::string* AsString() const;
  List* AsList() const { return Object<List*>(); }
  Dict* AsDict() const { return Object<Dict*>(); }
  Namespace* AsNamespace() const { return Object<Namespace*>(); }
  Loop* AsLoop() const { return Object<Loop*>(); }
  Macro* AsMacro() const { return Object<Macro*>(); }
  Method* AsMethod() const { return Object<Method*>(); }
  Function* AsFunction() const { return Object<Function*>(); }

  // Sets `number` and returns true for a bool, int or float. Returns false for
  // other types.
  bool ToNumber(double* number) const;
  // Sets `integer` and returns true for an int, or a bool as 0 or 1.
  bool ToInteger(Integer* integer) const;

  // The origin of a bool, int, float or none. kMessage for a string of which
  // one byte is of a message.
  Origin origin() const;
  // Returns the value with `origin`, if it is a bool, int, float or none.
  Value WithOrigin(Origin origin) const;

  bool IsTrue() const;
  // Returns Python's name of the type, such as "str".
  const char* TypeName() const;

 private:
  struct None {};
  struct Missing {
    std::shared_ptr<const std::string> problem;
  };

  template <typename T>
  T Object() const {
    const T* found = std::get_if<T>(&value_);
    return found == nullptr ? nullptr : *found;
  }

  std::variant<None, Missing, bool, Integer, double,
               std::shared_ptr<const Text>, List*, Dict*, Namespace*, Loop*,
               Macro*, Method*, Function*>
      value_;
  Origin origin_ = Origin::kTemplate;
  bool markup_ = false;
};

struct List {
  enum Kind {
    kList,
    kTuple,
    kGroup,     // A tuple of groupby, with attributes grouper and list.
    kRange,     // range(bounds[0], bounds[1], bounds[2])
    kIterator,  // Ends after it has been iterated once.
    kKeys,      // The views of a dict.
    kValues,
    kItems,
  };
  Kind kind = kList;
  std::vector<Value> items;
  Integer bounds[3] = {0, 0, 1};
  Origin origin = Origin::kTemplate;  // Brackets and commas have it.

  bool IsTuple() const { return kind == kTuple || kind == kGroup; }
  // Returns whether items have indices, as in lists, tuples and ranges.
  bool IsSequence() const { return kind <= kRange; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // In order of insertion.
  // Index in items, by the HashKey of compare.h.
  absl::flat_hash_map<std::string, size_t> index;
  Origin origin = Origin::kTemplate;  // Braces, colons, commas have it.

  // Returns null if there is no string `key`.
  const Value* Find(absl::string_view key) const;
  // Sets items[key]. `hash_key` is the key's HashKey.
  void Set(std::string hash_key, Value key, Value value);
  void Set(absl::string_view key, Value value);
  // Return the HashKey of a string.
  static std::string StringKey(absl::string_view key);
};

// The variables of a namespace().
struct Namespace {
  Dict attributes;
};

// An object that loop, cycler() or joiner() makes.
struct Loop {
  std::vector<Value> items;
  int64_t index0 = 0;
  int64_t depth0 = 0;
  Value changed;                  // Arguments of the last changed(), a tuple.
  const Stmt* recurse = nullptr;  // A recursive loop's statement, else null.
  Scope* scope = nullptr;         // The scope around the loop.
};

// A macro, or the caller of a call block.
struct Macro {
  std::string name;
  const Stmt* definition;
  Scope* scope;  // The scope in which the macro is defined.
};

// A method of an object, not yet called.
struct Method {
  Value object;
  std::string name;
};

// A function of the environment, or an object of cycler() or joiner().
struct Function {
  std::string name;
  std::vector<Value> items;  // A cycler's, or a joiner's separator.
  size_t position = 0;
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_VALUE_H_
