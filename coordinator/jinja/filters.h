// SPDX-License-Identifier: Apache-2.0
// The filters of Jinja: value | name.
#ifndef RINGFLEET_COORDINATOR_JINJA_FILTERS_H_
#define RINGFLEET_COORDINATOR_JINJA_FILTERS_H_

#include <initializer_list>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/jinja/arguments.h"
#include "coordinator/jinja/context.h"
#include "coordinator/jinja/value.h"

namespace ringfleet::coordinator::jinja {

bool IsFilter(absl::string_view name);

// Returns value | name(arguments). The filters of Jinja exist, but those that
// format for people or for the web (filesizeformat, pprint, striptags, urlize,
// urlencode, wordwrap, xmlattr) and random. tojson writes plain JSON, as chat
// templates expect, and from_json reads it.
// Errors: INVALID_ARGUMENT: an unknown name, or an argument of a wrong type.
absl::StatusOr<Value> ApplyFilter(absl::string_view name, const Value& value,
                                  const Arguments& arguments, Context* context);

// --- What the filters are made of.

// One application of a filter.
struct FilterCall {
  absl::string_view name;
  const Value& value;
  const Arguments& arguments;
  Context* context;

  absl::StatusOr<BoundArguments> Bind(
      std::initializer_list<absl::string_view> parameters,
      size_t required = 0) const {
    return BoundArguments::Bind(name, arguments, parameters, required);
  }
};

using Filter = absl::StatusOr<Value> (*)(const FilterCall&);
using FilterTable = absl::flat_hash_map<absl::string_view, Filter>;

// The filters whose result is a text, or a number.
const FilterTable& TextFilters();
// The filters over items, which give items or one of them.
const FilterTable& SequenceFilters();
// The filters that apply a filter, a test or an attribute to each item: map,
// select, sort and their kin.
const FilterTable& ItemFilters();

}  // namespace ringfleet::coordinator::jinja

#endif  // RINGFLEET_COORDINATOR_JINJA_FILTERS_H_
