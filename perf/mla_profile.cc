// SPDX-License-Identifier: Apache-2.0
// Prints what one decode step of one attention layer costs in each of the five
// forms of mla_variants.h, over batches and contexts: milliseconds, bytes of
// the cache, operations. Cells that would take too long or too much memory hold
// a prediction instead, marked ~: the time of the last measured cell of that
// form, of one sequence of 32 positions at first, scaled by the operations or
// by the bytes, whichever grows more.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/isa.h"
#include "perf/mla_variants.h"

namespace ringfleet::perf {
namespace {

using kernels::Dtype;

struct Options {
  std::vector<size_t> batches = {1, 8, 32};
  std::vector<size_t> contexts = {32, 256, 1024, 4096, 8192, 16384, 32768};
  int threads = 2;
  int repetitions = 3;
  double max_seconds = 5;
  double max_gb = 8;
};

// Microseconds on an A100-40G with float16, where they are published.
std::optional<int> Published(MlaVariant variant, size_t batch, size_t context) {
  using Cell = std::pair<size_t, size_t>;
  static const std::map<Cell, std::vector<int>> cells = {
      {{1, 32}, {313, 364, 379, 358, 2966}},
      {{1, 1024}, {380, 688, 719, 372, 2982}},
      {{1, 4096}, {568, 1775, 1809, 415, 3011}},
      {{1, 16384}, {1312, 6151, 7420, 576, 3196}},
      {{32, 32}, {424, 838, 844, 558, 3108}},
      {{32, 256}, {853, 4012, 3667, 1110, 3734}},
      {{32, 1024}, {2316, 14994, 13353, 3080, 5659}},
      {{32, 4096}, {8312, 59519, 52501, 15486, 17972}},
      {{32, 8192}, {16277, 121784, 99435, 29778, 32094}},
  };
  const auto found = cells.find({batch, context});
  if (found == cells.end()) return std::nullopt;
  return found->second[static_cast<size_t>(variant)];
}

double Measure(MlaVariant variant, size_t batch, size_t context,
               const Options& options, kernels::ThreadPool& pool) {
  const MlaShape shape;
  MlaModule module(variant, shape, batch, context, Dtype::kBf16, Dtype::kBf16,
                   pool);
  const std::vector<float> q_latent(batch * shape.q_rank, 0.5f);
  std::vector<float> out(batch * shape.hidden);
  std::vector<double> seconds;
  for (int i = -1; i < options.repetitions; ++i) {  // The first warms up.
    const auto start = std::chrono::steady_clock::now();
    module.Run(q_latent.data(), out.data());
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    if (i >= 0) seconds.push_back(taken.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

MlaCost CostOfCell(MlaVariant variant, size_t batch, size_t context) {
  return CostOf(variant, MlaShape(), batch, context, Dtype::kBf16,
                Dtype::kBf16);
}

double Bytes(const MlaCost& cost) {
  return cost.cache_bytes + cost.temporary_bytes + cost.weight_bytes;
}

void PrintRow(MlaVariant variant, size_t batch, const Options& options,
              kernels::ThreadPool& pool) {
  std::string row =
      absl::StrFormat("| %-8s |", std::string(MlaVariantName(variant)));
  constexpr size_t kLeastContext = 32;
  MlaCost measured = CostOfCell(variant, 1, kLeastContext);
  double taken = Measure(variant, 1, kLeastContext, options, pool);
  for (const size_t context : options.contexts) {
    const MlaCost cost = CostOfCell(variant, batch, context);
    double seconds = taken * std::max(cost.flops / measured.flops,
                                      Bytes(cost) / Bytes(measured));
    const bool runs =
        seconds <= options.max_seconds && Bytes(cost) <= options.max_gb * 1e9;
    if (runs) {
      seconds = Measure(variant, batch, context, options, pool);
      measured = cost;
      taken = seconds;
    }
    row += absl::StrFormat(" %s%.3g ms", runs ? "" : "~", seconds * 1e3);
    const std::optional<int> published = Published(variant, batch, context);
    if (published.has_value()) {
      row += absl::StrFormat(" [%.3g]", *published / 1e3);
    }
    row += absl::StrFormat(", %.3g GB, %.3g GFLOP |", cost.cache_bytes / 1e9,
                           cost.flops / 1e9);
    std::fprintf(stderr, "%s batch %zu context %zu: %s%.3g ms\n",
                 std::string(MlaVariantName(variant)).c_str(), batch, context,
                 runs ? "" : "~", seconds * 1e3);
  }
  std::printf("%s\n", row.c_str());
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "One attention layer of DeepSeek-V2 (128 heads), bfloat16 weights and "
      "cache: time of a decode step [published, A100-40G], cache, operations.");
  Options options;
  app.add_option("--batch", options.batches, "Sequences")->delimiter(',');
  app.add_option("--context", options.contexts, "Positions of each")
      ->delimiter(',');
  app.add_option("-t,--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("-r,--repetitions", options.repetitions, "Of which the median")
      ->check(CLI::Range(1, 1000));
  app.add_option("--max-seconds", options.max_seconds, "Predict slower cells");
  app.add_option("--max-gb", options.max_gb, "Predict larger cells");
  CLI11_PARSE(app, argc, argv);
  std::sort(options.contexts.begin(), options.contexts.end());
  kernels::ThreadPool pool(options.threads);
  std::printf(
      "%d threads, %s; [published]; ~: not run, would take more than %.3g s or "
      "%.3g GB\n",
      options.threads,
      std::string(kernels::IsaName(kernels::CurrentIsa())).c_str(),
      options.max_seconds, options.max_gb);
  for (const size_t batch : options.batches) {
    std::printf("\n| batch %zu |", batch);
    for (const size_t context : options.contexts) {
      std::printf(" %zu positions |", context);
    }
    std::printf("\n|---|");
    for (size_t i = 0; i < options.contexts.size(); ++i) std::printf("---|");
    std::printf("\n");
    for (const MlaVariant variant : kMlaVariants) {
      PrintRow(variant, batch, options, pool);
    }
  }
  return 0;
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) { return ringfleet::perf::Main(argc, argv); }
