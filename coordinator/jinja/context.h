// SPDX-License-Identifier: Apache-2.0
// The state of one rendering of a template: its limits, its objects, its time.
#ifndef RINGFLEET_COORDINATOR_JINJA_CONTEXT_H_
#define RINGFLEET_COORDINATOR_JINJA_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/civil_time.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

// Limits of one rendering. A DeepSeek template takes about 50 steps for each
// message. 32 MiB of text have about 8 million tokens.
constexpr size_t kMaxSourceBytes = 1 << 20;
constexpr int64_t kMaxSteps = 5'000'000;
constexpr size_t kMaxWorkBytes = 256 << 20;
constexpr size_t kMaxOutputBytes = 32 << 20;
// Limit of nested expressions and statements of a source, and of nested values.
constexpr int kMaxDepth = 100;
// Limit of nested expressions and statements in execution, with those of the
// macros that are being called. Each takes at most 2 KiB of stack.
constexpr int kMaxNesting = 1200;
// The sandbox of Jinja has this limit for range().
constexpr int64_t kMaxRange = 100'000;

// Counts the work of one rendering and owns its objects.
class Context {
 public:
  // `now` is the time of strftime_now.
  explicit Context(absl::CivilSecond now) : now_(now) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Counts one step. Call it before each evaluation, comparison and iteration.
  // Errors: INVALID_ARGUMENT: a limit is exceeded.
  absl::Status Step();
  // Counts `bytes` bytes. Call it before code builds or searches strings or
  // lists of `bytes` bytes.
  // Errors: INVALID_ARGUMENT: a limit is exceeded.
  absl::Status Work(size_t bytes);
  // Work for `count` values.
  absl::Status WorkOnItems(size_t count);

  // Returns an object that lives as long as the context.
  template <typename T>
  T* New(T object) {
    auto& owner = std::get<std::deque<T>>(objects_);
    owner.push_back(std::move(object));
    return &owner.back();
  }
  Value NewList(std::vector<Value> items, List::Kind kind = List::kList);
  Value NewPair(Value first, Value second);

  absl::CivilSecond now() const { return now_; }

  // One level of recursion, for as long as the object lives.
  class Nesting {
   public:
    explicit Nesting(Context* context) : context_(context) {
      ++context_->nesting_;
    }
    ~Nesting() { --context_->nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    // Returns INVALID_ARGUMENT if there are more than kMaxNesting levels.
    absl::Status Check() const;

   private:
    Context* const context_;
  };

 private:
  const absl::CivilSecond now_;
  int nesting_ = 0;
  int64_t steps_ = 0;
  size_t work_bytes_ = 0;
  std::tuple<std::deque<List>, std::deque<Dict>, std::deque<Namespace>,
             std::deque<Loop>, std::deque<Macro>, std::deque<Method>,
             std::deque<Function>>
      objects_;
};

// Returns the error of a value that nests deeper than kMaxDepth.
absl::Status TooDeep();

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_CONTEXT_H_
