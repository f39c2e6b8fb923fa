// SPDX-License-Identifier: Apache-2.0
// Writes metrics in Prometheus' text format, version 0.0.4.
#ifndef RINGFLEET_COORDINATOR_METRICS_METRICS_TEXT_H_
#define RINGFLEET_COORDINATOR_METRICS_METRICS_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

enum class MetricKind { kGauge, kCounter, kHistogram };

struct Metric {
  absl::string_view name;
  MetricKind kind;
  absl::string_view help;  // One line without backslashes.
};

// Names and values. Values may hold any bytes.
using MetricLabels = std::vector<std::pair<absl::string_view, std::string>>;

// Not thread-safe.
class MetricsText {
 public:
  // Begins a metric, to which later samples belong. Each metric comes once.
  void Begin(const Metric& metric);

  // Add a sample. The labels of a metric's samples differ.
  void Add(const MetricLabels& labels, uint64_t value);
  void Add(const MetricLabels& labels, double value);
  // Adds a histogram's samples. Requires MetricKind::kHistogram.
  void Add(const MetricLabels& labels, const v1::Histogram& histogram);

  // Begins a metric of one sample.
  template <typename Value>
  void Only(const Metric& metric, const MetricLabels& labels,
            const Value& value) {
    Begin(metric);
    Add(labels, value);
  }

  std::string Take() { return std::move(text_); }

 private:
  // Begins a line: the metric's name with `suffix`, and the labels.
  void Sample(absl::string_view suffix, const MetricLabels& labels);

  std::string text_;
  absl::string_view name_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_METRICS_METRICS_TEXT_H_
