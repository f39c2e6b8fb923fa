// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jinja/filters.h"

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::jinja {
namespace {

// Null: no filter has the name.
Filter FindFilter(absl::string_view name) {
  for (const FilterTable* table :
       {&TextFilters(), &SequenceFilters(), &ItemFilters()}) {
    const auto found = table->find(name);
    if (found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace

bool IsFilter(absl::string_view name) { return FindFilter(name) != nullptr; }

absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments,
                                  Context* context) {
  RF_RETURN_IF_ERROR(context->Step());
  // Filters apply filters to their items.
  const Context::Nesting nesting(context);
  RF_RETURN_IF_ERROR(nesting.Check());
  const Filter filter = FindFilter(name);
  if (filter != nullptr) return filter({name, value, arguments, context});
  return absl::InvalidArgumentError(
      absl::StrCat("filter \"", name, "\" does not exist"));
}

}  // namespace ringfleet::coordinator::jinja
