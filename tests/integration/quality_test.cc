// SPDX-License-Identifier: Apache-2.0
// What rounding costs: the divergence of tiny-v3 from its own float32 weights
// over texts of its domain that it has not seen, as kernels/README.md has it.
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/fleet_fixture.h"

namespace ringfleet::integration {
namespace {

// Sources of Python's library; empty where there is none.
std::string HeldBackText() {
  std::string text;
  for (const char* module : {"textwrap", "sched", "bisect", "colorsys"}) {
    std::ifstream file(absl::StrCat("/usr/lib/python3.11/", module, ".py"));
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

struct Divergence {
  double mean_kl = 0;  // Nats.
  double top1_agreement = 0;
};

class QualityTest : public FleetTest {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "release builds score the text";
    const std::string text = HeldBackText();
    if (text.empty()) GTEST_SKIP() << "no Python 3.11, whose library is read";
    std::ofstream(File("text")) << text;
  }

  Divergence Score(const Arguments& forms) {
    Arguments command = {"score", "--model", Model(),      "--local",
                         "1",     "-f",      File("text"), "--reference",
                         "f32",   "--json"};
    command.insert(command.end(), forms.begin(), forms.end());
    const Finished finished = Cli(command, {.seconds = 120});
    EXPECT_EQ(finished.code, 0) << finished.errors;
    if (finished.code != 0) return {};
    const json document = finished.document();
    EXPECT_GE(document["logprobs"].size(), 5000u);
    return {document["reference"]["mean_kl"],
            document["reference"]["top1_agreement"]};
  }
};

// Recorded: 2.97e-3 nats and 96.8 %, 9.7e-3, 38.9e-3, and 0.7e-3 more for the
// cache; an eighth more is left to other instruction sets. int4 without the
// search of its scales, a group's extreme being -8 or +-8, has 44.5e-3 and
// 52e-3.
TEST_F(QualityTest, RoundedWeightsStayNearFloat32) {
  const Divergence int8 = Score({"--dtype", "int8"});
  EXPECT_LT(int8.mean_kl, 3.5e-3);
  EXPECT_GT(int8.top1_agreement, 0.965);
  EXPECT_LT(Score({"--dtype", "int4-experts"}).mean_kl, 1.1e-2);
  EXPECT_LT(Score({"--dtype", "int4"}).mean_kl, 4.4e-2);
  // A cache in int8 costs at most 1e-3 more.
  EXPECT_LT(Score({"--dtype", "int8", "--cache-type", "int8"}).mean_kl,
            int8.mean_kl + 1e-3);
  // Float32 beside itself.
  EXPECT_LT(Score({"--dtype", "f32"}).mean_kl, 1e-9);
}

}  // namespace
}  // namespace ringfleet::integration
