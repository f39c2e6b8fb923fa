// SPDX-License-Identifier: Apache-2.0
// Products of every weight form beside the machine's ceilings: what one pass
// over the weights reads, and what it computes. The first rows are bound by
// memory, the last by arithmetic; each row names the ceiling it is nearer to.
// Memory changes within seconds on shared machines, so a sum over the same
// bytes follows each product, and a rate is the median of its passes.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "kernels/isa.h"
#include "kernels/products/matmul.h"
#include "kernels/products/weight_matrix.h"
#include "kernels/read_bandwidth.h"
#include "perf/roofline.h"

namespace ringfleet::perf {
namespace {

using kernels::WeightForm;

struct Sizes {
  // Of one expert's gate and up projections times four: 117 MB of int8, which
  // no cache of a core's share holds.
  size_t outputs = 16384;
  size_t columns = 7168;
  std::vector<size_t> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  std::vector<std::string> forms = {"int8", "int4", "bf16", "f32"};
  // Count the processor's time of all threads instead of the clock's, on
  // machines that other processes share.
  bool processor_time = false;
};

double Now(bool processor_time) {
  timespec now;
  clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC,
                &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

kernels::WeightMatrix MakeWeights(WeightForm form, const Sizes& sizes,
                                  kernels::ThreadPool& pool) {
  kernels::WeightMatrix w(form, sizes.outputs, sizes.columns);
  pool.ParallelFor(sizes.outputs, 64, [&](size_t begin, size_t end) {
    std::vector<float> row(sizes.columns);
    for (size_t o = begin; o < end; ++o) {
      for (size_t k = 0; k < sizes.columns; ++k) {
        row[k] = static_cast<float>((o * 31 + k * 37) % 101) / 50 - 1;
      }
      w.SetRow(o, row.data());
    }
  });
  return w;
}

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Adds up the bytes of the weights; so much is read at a time.
void Read(const kernels::WeightMatrix& w, kernels::ThreadPool& pool) {
  constexpr size_t kWords = size_t{1} << 15;
  const auto* const words = reinterpret_cast<const uint64_t*>(w.data());
  const size_t count = w.bytes() / sizeof(uint64_t);
  pool.ParallelFor((count + kWords - 1) / kWords, 1,
                   [&](size_t begin, size_t end) {
                     const size_t first = begin * kWords;
                     const size_t last = std::min(count, end * kWords);
                     static std::atomic<uint64_t> sink;
                     sink += kernels::SumWords(words + first, last - first);
                   });
}

struct Passes {
  double product_seconds = 0;
  double read_seconds = 0;
  double read_share = 0;  // Of the sum's rate, which the product reaches.
};

// Medians of products and sums in turns, for about two seconds.
Passes Measure(const kernels::WeightMatrix& w, size_t rows, bool processor_time,
               kernels::ThreadPool& pool) {
  std::vector<float> x(rows * w.columns());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i * 41 % 97) / 50 - 1;
  }
  std::vector<float> y(rows * w.rows());
  kernels::Activations activations;
  activations.Assign(kernels::ActivationFormFor(w.form()), x.data(), rows,
                     w.columns(), w.columns(), pool);
  using Clock = std::chrono::steady_clock;
  const auto seconds_of = [&](auto&& pass) {
    const double begin = Now(processor_time);
    pass();
    return (Now(processor_time) - begin) /
           (processor_time ? pool.threads() : 1);
  };
  const auto multiply = [&] {
    kernels::MatMul(w, activations, y.data(), pool);
  };
  multiply();  // Warm.
  std::vector<double> products, reads, shares;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(2);
  do {
    products.push_back(seconds_of(multiply));
    reads.push_back(seconds_of([&] { Read(w, pool); }));
    shares.push_back(reads.back() / products.back());
  } while (Clock::now() < end);
  return {Median(products), Median(reads), Median(shares)};
}

void Run(kernels::ThreadPool& pool, const Sizes& sizes) {
  const Roofline roofline = MeasureRoofline(pool);
  std::printf(
      "%s, %d threads: read %.1f GB/s, int8 %.0f, int4 %.0f GOPS, bf16 %.0f, "
      "f32 %.0f GFLOP/s\n\n| weights | rows | GB/s | a sum, GB/s | GOPS | "
      "ceiling | "
      "share |\n|---|---|---|---|---|---|---|\n",
      std::string(kernels::IsaName(kernels::CurrentIsa())).c_str(),
      pool.threads(), roofline.read_gbps, roofline.int8_gops,
      roofline.int4_gops, roofline.bf16_gflops, roofline.f32_gflops);
  for (const WeightForm form :
       {WeightForm::kInt8, WeightForm::kInt4, WeightForm::kBf16,
        WeightForm::kF32, WeightForm::kReference}) {
    const std::string name(kernels::WeightFormName(form));
    if (std::count(sizes.forms.begin(), sizes.forms.end(), name) == 0) continue;
    const kernels::WeightMatrix w = MakeWeights(form, sizes, pool);
    const double limit = form == WeightForm::kInt8   ? roofline.int8_gops
                         : form == WeightForm::kInt4 ? roofline.int4_gops
                                                     : roofline.f32_gflops;
    for (const size_t count : sizes.rows) {
      const Passes passes = Measure(w, count, sizes.processor_time, pool);
      const double gigabytes = static_cast<double>(w.bytes()) / 1e9;
      const double gops = 2.0 *
                          static_cast<double>(count * w.rows() * w.columns()) /
                          passes.product_seconds / 1e9;
      const double compute_share = gops / limit;
      std::printf("| %s | %zu | %.1f | %.1f | %.0f | %s | %.0f %% |\n",
                  name.c_str(), count, gigabytes / passes.product_seconds,
                  gigabytes / passes.read_seconds, gops,
                  passes.read_share > compute_share ? "read" : "compute",
                  100 * std::max(passes.read_share, compute_share));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) {
  CLI::App app("Products of every weight form beside the machine's ceilings");
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  std::string isa;
  ringfleet::perf::Sizes sizes;
  app.add_option("-t,--threads", threads)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--isa", isa, "Hold the kernels back to an instruction set");
  app.add_option("--weights", sizes.forms, "Forms of weights")
      ->delimiter(',')
      ->check(CLI::IsMember({"int8", "int4", "bf16", "f32", "reference"}))
      ->capture_default_str();
  app.add_flag("--processor-time", sizes.processor_time,
               "Count the time of all threads, not the clock's");
  app.add_option("--outputs", sizes.outputs, "Rows of weights")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--columns", sizes.columns)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--rows", sizes.rows, "Rows of activations")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!isa.empty()) {
    const auto parsed = ringfleet::kernels::ParseIsa(isa);
    if (!parsed.ok()) {
      std::fprintf(stderr, "%s\n", parsed.status().ToString().c_str());
      return 2;
    }
    ringfleet::kernels::ForceIsa(*parsed);
  }
  ringfleet::kernels::ThreadPool pool(threads);
  ringfleet::perf::Run(pool, sizes);
  return 0;
}
