// SPDX-License-Identifier: Apache-2.0
#include "coordinator/metrics/metrics_text.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

absl::string_view KindText(MetricKind kind) {
  switch (kind) {
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "untyped";
}

// Returns the shortest text that reads as the same number.
std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

void AppendLabelValue(absl::string_view value, std::string* out) {
  *out += '"';
  for (const char c : value) {
    if (c == '\\' || c == '"') *out += '\\';
    if (c == '\n') {
      *out += "\\n";
    } else {
      *out += c;
    }
  }
  *out += '"';
}

}  // namespace

void MetricsText::Begin(const Metric& metric) {
  name_ = metric.name;
  absl::StrAppend(&text_, "# HELP ", name_, " ", metric.help, "\n# TYPE ",
                  name_, " ", KindText(metric.kind), "\n");
}

void MetricsText::Sample(absl::string_view suffix, const MetricLabels& labels) {
  absl::StrAppend(&text_, name_, suffix);
  absl::string_view before = "{";
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&text_, before, name, "=");
    AppendLabelValue(value, &text_);
    before = ",";
  }
  text_ += labels.empty() ? " " : "} ";
}

void MetricsText::Add(const MetricLabels& labels, uint64_t value) {
  Sample("", labels);
  absl::StrAppend(&text_, value, "\n");
}

void MetricsText::Add(const MetricLabels& labels, double value) {
  Sample("", labels);
  absl::StrAppend(&text_, NumberText(value), "\n");
}

void MetricsText::Add(const MetricLabels& labels,
                      const v1::Histogram& histogram) {
  MetricLabels bucket = labels;
  bucket.emplace_back("le", "");
  uint64_t count = 0;
  for (int i = 0; i < histogram.counts_size(); ++i) {
    count += histogram.counts(i);
    bucket.back().second =
        i < histogram.bounds_size() ? NumberText(histogram.bounds(i)) : "+Inf";
    Sample("_bucket", bucket);
    absl::StrAppend(&text_, count, "\n");
  }
  Sample("_sum", labels);
  absl::StrAppend(&text_, NumberText(histogram.sum()), "\n");
  Sample("_count", labels);
  absl::StrAppend(&text_, count, "\n");
}

}  // namespace ringfleet::coordinator
