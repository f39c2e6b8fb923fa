// SPDX-License-Identifier: Apache-2.0
#include "kernels/products/swiglu.h"

#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "kernels/products/matmul.h"
#include "tests/kernels/each_isa.h"
#include "tests/kernels/random_floats.h"

namespace ringfleet::kernels {
namespace {

constexpr WeightForm kSwigluForms[] = {WeightForm::kF32, WeightForm::kBf16,
                                       WeightForm::kInt8, WeightForm::kInt4};

struct Network {
  Network(WeightForm form, size_t columns, size_t width, size_t hidden_size,
          uint32_t seed)
      : gate(Random(form, width, columns, seed)),
        up(Random(form, width, columns, seed + 1)),
        down(Random(form, hidden_size, width, seed + 2)) {}

  static WeightMatrix Random(WeightForm form, size_t rows, size_t columns,
                             uint32_t seed) {
    WeightMatrix w(form, rows, columns);
    const std::vector<float> values = RandomFloats(rows * columns, seed);
    for (size_t row = 0; row < rows; ++row) {
      w.SetRow(row, values.data() + row * columns);
    }
    return w;
  }

  SwigluExpert Expert(absl::Span<const uint32_t> rows,
                      const float* weights) const {
    return {.gate = &gate,
            .up = &up,
            .down = &down,
            .rows = rows,
            .weights = weights};
  }

  WeightMatrix gate;
  WeightMatrix up;
  WeightMatrix down;
};

// One row through one network, product by product.
std::vector<float> Plain(const SwigluExpert& network, const Activations& x,
                         size_t row, ThreadPool& pool) {
  const size_t width = network.gate->rows();
  const auto multiply = [&](const WeightMatrix& w, const Activations& input,
                            size_t index) {
    std::vector<float> y(w.rows());
    MatMul({{.w = &w,
             .num_rows = w.rows(),
             .x = &input,
             .first_x = index,
             .batch = 1,
             .y = y.data(),
             .y_stride = w.rows()}},
           pool);
    return y;
  };
  std::vector<float> gate = multiply(*network.gate, x, row);
  const std::vector<float> up = multiply(*network.up, x, row);
  SiluMultiply(gate.data(), up.data(), width);
  Activations hidden;
  hidden.Assign(ActivationFormFor(network.down->form()), gate.data(), 1, width,
                width, pool);
  return multiply(*network.down, hidden, 0);
}

// gate x and up x of all rows, and what says so.
struct Multiplied {
  Multiplied(const SwigluExpert& network, const Activations& x,
             ThreadPool& pool)
      : gate(x.rows() * network.gate->rows()),
        up(gate.size()),
        expert(network) {
    MatMul(*network.gate, x, gate.data(), pool);
    MatMul(*network.up, x, up.data(), pool);
    expert.gate_x = gate.data();
    expert.up_x = up.data();
  }

  std::vector<float> gate;
  std::vector<float> up;
  SwigluExpert expert;
};

// Swiglu makes the weighted sums of rows through `experts`, bit for bit, on any
// number of threads and again with a workspace that was used and the first
// one's products made before.
void ExpectSums(absl::Span<const SwigluExpert> experts,
                absl::Span<const float> values, size_t columns) {
  const size_t tokens = values.size() / columns;
  const size_t hidden_size = experts[0].down->rows();
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    Activations x;
    x.Assign(ActivationFormFor(experts[0].gate->form()), values.data(), tokens,
             columns, columns, pool);
    SwigluWorkspace workspace;
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> out(tokens * hidden_size, NAN);
      const RowRange rows = {0, tokens};
      const Multiplied first(experts[0], x, pool);
      std::vector<SwigluExpert> given(experts.begin(), experts.end());
      if (repeat == 1) given[0] = first.expert;
      Swiglu(given, x, hidden_size, {.y = out.data(), .rows = {&rows, 1}},
             &workspace, pool);
      for (size_t row = 0; row < tokens; ++row) {
        std::vector<float> expected(hidden_size);
        for (const SwigluExpert& expert : experts) {
          for (size_t i = 0; i < expert.rows.size(); ++i) {
            if (expert.rows[i] != row || expert.gate->rows() == 0) continue;
            AddScaledTo(expert.weights == nullptr ? 1.0f : expert.weights[i],
                        Plain(expert, x, row, pool).data(), hidden_size,
                        expected.data());
          }
        }
        for (size_t o = 0; o < hidden_size; ++o) {
          ASSERT_EQ(out[row * hidden_size + o], expected[o])
              << "row " << row << " output " << o;
        }
      }
    }
  }
}

class SwigluTest : public ::testing::TestWithParam<WeightForm> {};

// Experts of different widths, one without rows and one of width 0; rows that
// many, one and no expert has. Bitwise: the same sums in the same order.
TEST_P(SwigluTest, IsTheWeightedSumOfItsNetworks) {
  ForEachIsa([] {
    const size_t columns = 150;
    const size_t hidden_size = 97;
    const size_t tokens = 60;
    const std::vector<float> values = RandomFloats(tokens * columns, 1);
    std::deque<Network> networks;
    for (const size_t width : {200, 1, 0, 64, 129}) {
      networks.emplace_back(GetParam(), columns, width, hidden_size,
                            static_cast<uint32_t>(10 + 3 * networks.size()));
    }
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < 55; ++i) all.push_back(i);
    const std::vector<uint32_t> some = {0, 2, 3, 50, 54};
    const std::vector<uint32_t> one = {7};
    const std::vector<float> weights = RandomFloats(5, 2);
    const float half = 0.5f;
    const std::vector<SwigluExpert> experts = {
        networks[0].Expert(all, nullptr), networks[1].Expert(one, &half),
        networks[2].Expert(all, nullptr), networks[3].Expert({}, nullptr),
        networks[4].Expert(some, weights.data())};
    ExpectSums(experts, values, columns);
  });
}

// Few rows take several groups of hidden columns and several panels of outputs
// of an expert before the next one: as many as there are, fewer, and a rest.
TEST_P(SwigluTest, OfFewRowsMuchGoesTogether) {
  ForEachIsa([] {
    const size_t columns = 40;
    const size_t hidden_size = 1000;
    std::deque<Network> networks;
    for (const size_t width : {1000, 300}) {
      networks.emplace_back(GetParam(), columns, width, hidden_size,
                            static_cast<uint32_t>(30 + 3 * networks.size()));
    }
    for (const size_t tokens : {1, 7, 12, 25}) {
      const std::vector<float> values = RandomFloats(tokens * columns, 1);
      const std::vector<float> weights = RandomFloats(tokens, 2);
      std::vector<uint32_t> all(tokens);
      std::iota(all.begin(), all.end(), 0);
      const std::vector<SwigluExpert> experts = {
          networks[0].Expert(all, nullptr),
          networks[1].Expert(all, weights.data())};
      ExpectSums(experts, values, columns);
    }
  });
}

TEST_P(SwigluTest, WithoutExpertsIsZero) {
  ThreadPool pool(2);
  const std::vector<float> values = RandomFloats(3 * 8, 1);
  Activations x;
  x.Assign(ActivationFormFor(GetParam()), values.data(), 3, 8, 8, pool);
  SwigluWorkspace workspace;
  std::vector<float> out(3 * 70, NAN);
  const RowRange rows = {0, 3};
  Swiglu({}, x, 70, {.y = out.data(), .rows = {&rows, 1}}, &workspace, pool);
  EXPECT_EQ(out, std::vector<float>(3 * 70, 0));
}

// Rows in two calls, of two ranges and of one, have the bits of one call, and
// no others are touched.
TEST_P(SwigluTest, RowsStandAlone) {
  ForEachIsa([] {
    const size_t columns = 70;
    const size_t hidden_size = 33;
    const size_t tokens = 19;
    ThreadPool pool(2);
    const std::vector<float> values = RandomFloats(tokens * columns, 1);
    Activations x;
    x.Assign(ActivationFormFor(GetParam()), values.data(), tokens, columns,
             columns, pool);
    const Network network(GetParam(), columns, 130, hidden_size, 3);
    SwigluWorkspace workspace;
    const auto run = [&](std::vector<RowRange> ranges, size_t first_y,
                         std::vector<float> out) {
      std::vector<uint32_t> rows;
      for (const RowRange& range : ranges) {
        for (size_t row = range.begin; row < range.end; ++row) {
          rows.push_back(static_cast<uint32_t>(row));
        }
      }
      const SwigluExpert expert = network.Expert(rows, nullptr);
      Swiglu({&expert, 1}, x, hidden_size,
             {.y = out.data(), .first_y = first_y, .rows = ranges}, &workspace,
             pool);
      return out;
    };
    const std::vector<float> whole =
        run({{0, tokens}}, 0, std::vector<float>(tokens * hidden_size, NAN));
    const std::vector<float> outer =
        run({{0, 5}, {11, tokens}}, 0, std::vector<float>(whole.size(), 7));
    const std::vector<float> inner =
        run({{5, 11}}, 5, std::vector<float>(6 * hidden_size, NAN));
    for (size_t i = 0; i < whole.size(); ++i) {
      const size_t row = i / hidden_size;
      const bool is_inner = row >= 5 && row < 11;
      ASSERT_EQ(outer[i], is_inner ? 7 : whole[i]) << "row " << row;
      if (is_inner) {
        ASSERT_EQ(inner[i - 5 * hidden_size], whole[i]);
      }
    }
  });
}

// Of hidden rows that were made together, sums in pieces, in any order, have
// the bits of all at once; experts have some of a piece's rows, all or none.
TEST_P(SwigluTest, SumsMayBeAskedForInPieces) {
  ForEachIsa([] {
    const size_t columns = 70;
    const size_t hidden_size = 97;
    const size_t tokens = 120;
    ThreadPool pool(2);
    const std::vector<float> values = RandomFloats(tokens * columns, 1);
    Activations x;
    x.Assign(ActivationFormFor(GetParam()), values.data(), tokens, columns,
             columns, pool);
    std::deque<Network> networks;
    std::vector<std::vector<uint32_t>> rows(4);
    std::vector<SwigluExpert> experts;
    const std::vector<float> weights = RandomFloats(tokens, 2);
    for (uint32_t row = 0; row < tokens; ++row) {
      rows[0].push_back(row);
      if (row % 3 == 1) rows[1].push_back(row);
      if (row >= 40 && row < 50) rows[2].push_back(row);
    }
    for (size_t e = 0; e < rows.size(); ++e) {
      networks.emplace_back(GetParam(), columns, e == 1 ? 0 : 130, hidden_size,
                            static_cast<uint32_t>(3 + 3 * e));
      experts.push_back(networks.back().Expert(rows[e], weights.data()));
    }
    SwigluWorkspace workspace;
    std::vector<float> whole(tokens * hidden_size, NAN);
    const RowRange all = {0, tokens};
    Swiglu(experts, x, hidden_size, {.y = whole.data(), .rows = {&all, 1}},
           &workspace, pool);

    SwigluHidden(experts, x, &workspace, pool);
    std::vector<float> out(whole.size(), NAN);
    const std::vector<std::vector<RowRange>> pieces = {
        {{60, tokens}}, {{0, 1}, {45, 60}}, {{7, 7}, {7, 45}}, {{1, 7}}, {}};
    for (const std::vector<RowRange>& ranges : pieces) {
      const size_t first = ranges.empty() ? 0 : ranges[0].begin;
      SwigluDown(experts, hidden_size,
                 {.y = out.data() + first * hidden_size,
                  .first_y = first,
                  .rows = ranges},
                 &workspace, pool);
    }
    EXPECT_EQ(out, whole);
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, SwigluTest, ::testing::ValuesIn(kSwigluForms),
                         [](const auto& info) {
                           return std::string(WeightFormName(info.param));
                         });

}  // namespace
}  // namespace ringfleet::kernels
