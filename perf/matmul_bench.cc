// SPDX-License-Identifier: Apache-2.0
// Products of every weight form beside the machine's ceilings: what one pass
// over the weights reads, and what it computes. The first rows are bound by
// memory, the last by arithmetic; each row names the ceiling it is nearer to.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "kernels/isa.h"
#include "kernels/matmul.h"
#include "kernels/weight_matrix.h"
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
};

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

// Seconds of one product, the best of some within a second.
double Measure(const kernels::WeightMatrix& w, size_t rows,
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
  const Clock::time_point end = Clock::now() + std::chrono::seconds(1);
  double best = 1e9;
  do {
    const Clock::time_point begin = Clock::now();
    kernels::MatMul(w, activations, y.data(), pool);
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    best = std::min(best, seconds.count());
  } while (Clock::now() < end);
  return best;
}

void Run(kernels::ThreadPool& pool, const Sizes& sizes) {
  const Roofline roofline = MeasureRoofline(pool);
  std::printf(
      "%s, %d threads: read %.1f GB/s, int8 %.0f, int4 %.0f GOPS, bf16 %.0f, "
      "f32 %.0f GFLOP/s\n\n| weights | rows | GB/s | GOPS | ceiling | share |\n"
      "|---|---|---|---|---|---|\n",
      std::string(kernels::IsaName(kernels::CurrentIsa())).c_str(),
      pool.threads(), roofline.read_gbps, roofline.int8_gops,
      roofline.int4_gops, roofline.bf16_gflops, roofline.f32_gflops);
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kInt4,
                                WeightForm::kBf16, WeightForm::kF32}) {
    const kernels::WeightMatrix w = MakeWeights(form, sizes, pool);
    const double limit = form == WeightForm::kInt8   ? roofline.int8_gops
                         : form == WeightForm::kInt4 ? roofline.int4_gops
                                                     : roofline.f32_gflops;
    for (const size_t count : sizes.rows) {
      const double seconds = Measure(w, count, pool);
      const double gbps = static_cast<double>(w.bytes()) / seconds / 1e9;
      const double gops = 2.0 *
                          static_cast<double>(count * w.rows() * w.columns()) /
                          seconds / 1e9;
      const double read_share = gbps / roofline.read_gbps;
      const double compute_share = gops / limit;
      std::printf("| %s | %zu | %.1f | %.0f | %s | %.0f %% |\n",
                  std::string(kernels::WeightFormName(form)).c_str(), count,
                  gbps, gops, read_share > compute_share ? "read" : "compute",
                  100 * std::max(read_share, compute_share));
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
