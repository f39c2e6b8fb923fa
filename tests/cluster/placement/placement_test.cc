// SPDX-License-Identifier: Apache-2.0
#include "cluster/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "cluster/placement/placement_balance.h"
#include "cluster/placement/placement_layout.h"

namespace ringfleet::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Rows = std::vector<std::vector<float>>;
using Order = std::vector<int>;

std::vector<float> Flat(const Rows& rows) {
  std::vector<float> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

ExpertPlacement Place(const Rows& loads, const PlacementRequest& request) {
  auto placement =
      PlaceExperts(Flat(loads), static_cast<int>(loads[0].size()), request);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *std::move(placement) : ExpertPlacement();
}

// The algorithm step by step, with its permutations, on one layer: for GPUs
// that are alike.
struct PlainPlacement {
  Order phy2log;
  Order copy_ranks;
  Order logcnt;
};

struct PlainPacks {
  Order pack;
  Order rank;
};

PlainPacks PlainPack(const std::vector<float>& loads, int packs) {
  const int n = static_cast<int>(loads.size());
  const int capacity = n / packs;
  PlainPacks result = {Order(n), Order(n)};
  Order order(n);
  std::iota(order.begin(), order.end(), 0);
  if (capacity == 1) return {order, Order(n, 0)};
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return loads[a] > loads[b]; });
  std::vector<float> sums(packs, 0.0f);
  Order items(packs, 0);
  for (const int item : order) {
    int lightest = -1;
    for (int p = 0; p < packs; ++p) {
      if (items[p] < capacity && (lightest < 0 || sums[p] < sums[lightest])) {
        lightest = p;
      }
    }
    result.pack[item] = lightest;
    result.rank[item] = items[lightest]++;
    sums[lightest] += loads[item];
  }
  return result;
}

PlainPlacement PlainPlace(const std::vector<float>& loads, int replicas,
                          int groups, int nodes, int gpus) {
  const int experts = static_cast<int>(loads.size());
  const int group_size = experts / groups;
  const int node_groups = groups / nodes;
  const int node_experts = experts / nodes;
  const int node_slots = replicas / nodes;
  const int node_gpus = gpus / nodes;
  const int gpu_slots = replicas / gpus;
  std::vector<float> group_loads(groups, 0.0f);
  for (int e = 0; e < experts; ++e) group_loads[e / group_size] += loads[e];
  const PlainPacks by_node = PlainPack(group_loads, nodes);
  Order log2mlog(experts), mlog2log(experts);
  for (int e = 0; e < experts; ++e) {
    const int g = e / group_size;
    log2mlog[e] =
        (by_node.pack[g] * node_groups + by_node.rank[g]) * group_size +
        e % group_size;
    mlog2log[log2mlog[e]] = e;
  }
  PlainPlacement result = {Order(replicas), Order(replicas), Order(experts)};
  for (int node = 0; node < nodes; ++node) {
    std::vector<float> row(node_experts);
    for (int m = 0; m < node_experts; ++m) {
      row[m] = loads[mlog2log[node * node_experts + m]];
    }
    Order phy2mlog(node_slots), rank(node_slots, 0), count(node_experts, 1);
    for (int i = 0; i < node_slots; ++i) {
      if (i < node_experts) {
        phy2mlog[i] = i;
        continue;
      }
      int most = 0;
      for (int m = 1; m < node_experts; ++m) {
        if (row[m] / static_cast<float>(count[m]) >
            row[most] / static_cast<float>(count[most])) {
          most = m;
        }
      }
      phy2mlog[i] = most;
      rank[i] = count[most]++;
    }
    std::vector<float> slot_loads(node_slots);
    for (int i = 0; i < node_slots; ++i) {
      slot_loads[i] = row[phy2mlog[i]] / static_cast<float>(count[phy2mlog[i]]);
    }
    const PlainPacks by_gpu = PlainPack(slot_loads, node_gpus);
    for (int i = 0; i < node_slots; ++i) {
      const int slot =
          node * node_slots + by_gpu.pack[i] * gpu_slots + by_gpu.rank[i];
      result.phy2log[slot] = mlog2log[node * node_experts + phy2mlog[i]];
      result.copy_ranks[slot] = rank[i];
    }
    for (int m = 0; m < node_experts; ++m) {
      result.logcnt[mlog2log[node * node_experts + m]] = count[m];
    }
  }
  return result;
}

// Sizes for which both policies are possible, and loads that often tie.
class RandomFleet {
 public:
  explicit RandomFleet(int seed) : random_(seed) {
    const int nodes = Draw(1, 4);
    const int node_groups = Draw(1, 4);
    const int node_gpus = Draw(1, 6);
    request.num_nodes = nodes;
    request.num_groups = nodes * node_groups;
    experts = request.num_groups * Draw(1, 5);
    request.num_gpus = nodes * node_gpus;
    request.num_replicas =
        request.num_gpus *
        ((experts + request.num_gpus - 1) / request.num_gpus + Draw(0, 3));
    request.policy =
        Draw(0, 1) == 0 ? PlacementPolicy::kGlobal : PlacementPolicy::kAuto;
    const int most = std::vector<int>{1, 3, 100, 1 << 26}[Draw(0, 3)];
    loads.resize(Draw(1, 3));
    for (auto& layer : loads) {
      for (int e = 0; e < experts; ++e) {
        layer.push_back(static_cast<float>(Draw(0, most)) / 8);
      }
    }
  }
  int Draw(int from, int to) {
    return std::uniform_int_distribution<int>(from, to)(random_);
  }
  int nodes() const {
    return request.policy == PlacementPolicy::kGlobal ? 1 : request.num_nodes;
  }
  int groups() const {
    return request.policy == PlacementPolicy::kGlobal ? 1 : request.num_groups;
  }

  PlacementRequest request;
  int experts = 0;
  Rows loads;

 private:
  std::mt19937 random_;
};

void ForRandomFleets(const std::function<void(RandomFleet&)>& check) {
  for (int seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomFleet fleet(seed);
    check(fleet);
  }
}

TEST(PlacementPropertyTest, IsWhatThePlainAlgorithmGives) {
  ForRandomFleets([](RandomFleet& fleet) {
    const ExpertPlacement placement = Place(fleet.loads, fleet.request);
    const int replicas = fleet.request.num_replicas;
    for (size_t x = 0; x < fleet.loads.size(); ++x) {
      const PlainPlacement plain =
          PlainPlace(fleet.loads[x], replicas, fleet.groups(), fleet.nodes(),
                     fleet.request.num_gpus);
      const int32_t* phy2log = placement.phy2log.data() + x * replicas;
      const int32_t* logcnt = placement.logcnt.data() + x * fleet.experts;
      EXPECT_THAT(std::vector<int>(phy2log, phy2log + replicas),
                  ElementsAreArray(plain.phy2log));
      EXPECT_THAT(std::vector<int>(logcnt, logcnt + fleet.experts),
                  ElementsAreArray(plain.logcnt));
      for (int slot = 0; slot < replicas; ++slot) {
        EXPECT_EQ(placement.log2phy[(x * fleet.experts + plain.phy2log[slot]) *
                                        placement.max_copies +
                                    plain.copy_ranks[slot]],
                  slot);
      }
    }
  });
}

void ExpectConsistent(const ExpertPlacement& placement) {
  const int replicas = placement.num_replicas;
  const int experts = placement.num_experts;
  int most = 0;
  for (int x = 0; x < placement.num_layers; ++x) {
    const int32_t* logcnt = placement.logcnt.data() + x * experts;
    EXPECT_EQ(std::accumulate(logcnt, logcnt + experts, 0), replicas);
    std::set<int> slots;
    for (int e = 0; e < experts; ++e) {
      EXPECT_GE(logcnt[e], 1);
      most = std::max(most, logcnt[e]);
      for (int k = 0; k < placement.max_copies; ++k) {
        const int slot =
            placement.log2phy[(x * experts + e) * placement.max_copies + k];
        if (k >= logcnt[e]) {
          EXPECT_EQ(slot, -1);
          continue;
        }
        ASSERT_TRUE(slot >= 0 && slot < replicas);
        EXPECT_EQ(placement.phy2log[x * replicas + slot], e);
        slots.insert(slot);
      }
    }
    EXPECT_EQ(slots.size(), static_cast<size_t>(replicas));
  }
  EXPECT_EQ(placement.max_copies, most);
}

TEST(PlacementPropertyTest, EverySlotHoldsOneCopyAndEveryExpertHasOne) {
  ForRandomFleets([](RandomFleet& fleet) {
    ExpectConsistent(Place(fleet.loads, fleet.request));
  });
}

TEST(PlacementPropertyTest, AGroupStaysOnOneNode) {
  ForRandomFleets([](RandomFleet& fleet) {
    const ExpertPlacement placement = Place(fleet.loads, fleet.request);
    const int node_slots = fleet.request.num_replicas / fleet.nodes();
    for (size_t x = 0; x < fleet.loads.size(); ++x) {
      std::vector<std::set<int>> nodes_of_group(fleet.groups());
      std::vector<std::set<int>> groups_of_node(fleet.nodes());
      for (int slot = 0; slot < placement.num_replicas; ++slot) {
        const int expert = placement.phy2log[x * placement.num_replicas + slot];
        const int group = expert / (fleet.experts / fleet.groups());
        nodes_of_group[group].insert(slot / node_slots);
        groups_of_node[slot / node_slots].insert(group);
      }
      for (const auto& nodes : nodes_of_group) EXPECT_EQ(nodes.size(), 1u);
      for (const auto& groups : groups_of_node) {
        EXPECT_EQ(static_cast<int>(groups.size()),
                  fleet.groups() / fleet.nodes());
      }
    }
  });
}

// A copy less of any expert that has several would be a larger load than any.
TEST(PlacementPropertyTest, NoCopyIsWastedOnANode) {
  ForRandomFleets([](RandomFleet& fleet) {
    const ExpertPlacement placement = Place(fleet.loads, fleet.request);
    const int node_slots = fleet.request.num_replicas / fleet.nodes();
    for (size_t x = 0; x < fleet.loads.size(); ++x) {
      const int32_t* logcnt = placement.logcnt.data() + x * fleet.experts;
      for (int node = 0; node < fleet.nodes(); ++node) {
        std::set<int> experts;
        for (int slot = 0; slot < node_slots; ++slot) {
          experts.insert(placement.phy2log[x * placement.num_replicas +
                                           node * node_slots + slot]);
        }
        float largest = 0;
        for (const int e : experts) {
          largest = std::max(largest,
                             fleet.loads[x][e] / static_cast<float>(logcnt[e]));
        }
        for (const int e : experts) {
          if (logcnt[e] == 1) continue;
          EXPECT_GE(fleet.loads[x][e] / static_cast<float>(logcnt[e] - 1),
                    largest);
        }
      }
    }
  });
}

TEST(PlacementPropertyTest, MoreSlotsNeverMakeACopyHeavier) {
  ForRandomFleets([](RandomFleet& fleet) {
    fleet.request.policy = PlacementPolicy::kGlobal;
    fleet.loads.resize(1);
    float before = std::numeric_limits<float>::max();
    for (int more = 0; more < 4; ++more) {
      const ExpertPlacement placement = Place(fleet.loads, fleet.request);
      float largest = 0;
      for (int e = 0; e < fleet.experts; ++e) {
        largest =
            std::max(largest, fleet.loads[0][e] /
                                  static_cast<float>(placement.logcnt[e]));
      }
      EXPECT_LE(largest, before);
      before = largest;
      fleet.request.num_replicas += fleet.request.num_gpus;
    }
  });
}

TEST(PlacementPropertyTest, PowersOfTwoAndOtherLayersChangeNothing) {
  ForRandomFleets([](RandomFleet& fleet) {
    const ExpertPlacement together = Place(fleet.loads, fleet.request);
    const int replicas = fleet.request.num_replicas;
    for (size_t x = 0; x < fleet.loads.size(); ++x) {
      Rows one = {fleet.loads[x]};
      for (float& load : one[0]) load *= 1.0f / 1024;
      const ExpertPlacement alone = Place(one, fleet.request);
      EXPECT_TRUE(std::equal(alone.phy2log.begin(), alone.phy2log.end(),
                             together.phy2log.begin() +
                                 static_cast<std::ptrdiff_t>(x * replicas)));
      EXPECT_LE(alone.max_copies, together.max_copies);
    }
  });
}

// Where no GPU is full before the last item comes: two slots each hold at least
// one light copy to even things out, so the bound is tested with many slots.
TEST(PlacementPropertyTest, NoGpuIsFurtherAboveTheMeanThanOneCopy) {
  ForRandomFleets([](RandomFleet& fleet) {
    const int experts = 16 * fleet.Draw(2, 6);
    PlacementRequest request = {.num_replicas = experts, .num_gpus = 2};
    Rows loads(1);
    for (int e = 0; e < experts; ++e) {
      loads[0].push_back(static_cast<float>(fleet.Draw(90, 110)));
    }
    const ExpertPlacement placement = Place(loads, request);
    const std::vector<double> gpus = GpuLoads(placement, 0, loads[0]);
    const double mean = (gpus[0] + gpus[1]) / 2;
    EXPECT_LE(std::max(gpus[0], gpus[1]), mean + 110);
  });
}

// GPUs that are alike in another unit, or slot by slot, are alike.
TEST(PlacementPropertyTest, EqualSlotsAndSpeedsGiveThePlainPlacement) {
  ForRandomFleets([](RandomFleet& fleet) {
    const ExpertPlacement plain = Place(fleet.loads, fleet.request);
    PlacementRequest same = fleet.request;
    same.gpu_slots.assign(same.num_gpus, same.num_replicas / same.num_gpus);
    same.gpu_speeds.assign(same.num_gpus,
                           static_cast<float>(fleet.Draw(1, 1000)) / 7);
    const ExpertPlacement placement = Place(fleet.loads, same);
    EXPECT_EQ(placement.phy2log, plain.phy2log);
    EXPECT_EQ(placement.log2phy, plain.log2phy);
    EXPECT_EQ(placement.first_slots, plain.first_slots);
  });
}

TEST(PlacementTest, GivesTheGoldenVectors) {
  std::ifstream file(std::string(RINGFLEET_SOURCE_DIR) +
                     "/tests/cluster/eplb_vectors.json");
  const auto vectors = nlohmann::json::parse(file);
  ASSERT_EQ(vectors["cases"].size(), 28u);
  for (const auto& golden : vectors["cases"]) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const Rows loads = golden["weight"];
    PlacementRequest request = {.num_replicas = golden["num_replicas"],
                                .num_groups = golden["num_groups"],
                                .num_nodes = golden["num_nodes"],
                                .num_gpus = golden["num_gpus"]};
    const ExpertPlacement placement = Place(loads, request);
    EXPECT_EQ(placement.hierarchical, golden["policy"] == "hierarchical");
    std::vector<int32_t> phy2log, log2phy, logcnt;
    for (size_t x = 0; x < loads.size(); ++x) {
      for (const auto& slot : golden["phy2log"][x]) phy2log.push_back(slot);
      for (const auto& count : golden["logcnt"][x]) logcnt.push_back(count);
      for (const auto& copies : golden["log2phy"][x]) {
        for (const auto& slot : copies) log2phy.push_back(slot);
      }
    }
    EXPECT_EQ(placement.phy2log, phy2log);
    EXPECT_EQ(placement.log2phy, log2phy);
    EXPECT_EQ(placement.logcnt, logcnt);
    // The stated policy chooses as the automatic one does.
    request.policy = golden["policy"] == "hierarchical"
                         ? PlacementPolicy::kHierarchical
                         : PlacementPolicy::kGlobal;
    EXPECT_EQ(Place(loads, request).phy2log, phy2log);
  }
}

const Rows kExample = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                       {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
const PlacementRequest kExampleFleet = {
    .num_replicas = 16, .num_groups = 4, .num_nodes = 2, .num_gpus = 8};

TEST(PlacementTest, LoadsOfGpusAreThoseOfTheirCopies) {
  const ExpertPlacement placement = Place(kExample, kExampleFleet);
  const std::vector<double> first = GpuLoads(placement, 0, kExample[0]);
  EXPECT_THAT(first,
              ElementsAre(121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152));
  EXPECT_NEAR(Imbalance(first, {}), 1.208, 5e-4);
  EXPECT_NEAR(Imbalance(GpuLoads(placement, 1, kExample[1]), {}), 1.242, 5e-4);
  EXPECT_EQ(Imbalance(std::vector<double>(3, 0.0), {}), 1);
  // The first GPU needs twice the time that both would if they shared.
  EXPECT_DOUBLE_EQ(Imbalance({4, 4}, {1, 3}), 2);
}

TEST(PlacementTest, ContiguousPlacementSplitsExpertsInOrder) {
  const ExpertPlacement placement = ContiguousPlacement(2, 12, 8);
  ExpectConsistent(placement);
  EXPECT_THAT(placement.first_slots, ElementsAre(0, 1, 3, 4, 6, 7, 9, 10, 12));
  EXPECT_THAT(GpuLoads(placement, 1, kExample[1]),
              ElementsAre(20, 211, 64, 216, 187, 329, 86, 43));
  // More GPUs than experts: some have none.
  EXPECT_THAT(GpuLoads(ContiguousPlacement(1, 2, 4), 0, {5, 7}),
              ElementsAre(0, 5, 0, 7));
}

TEST(PlacementTest, WithoutLoadExtraCopiesGoToTheFirstExpertOfANode) {
  const Rows zero = {std::vector<float>(12, 0.0f)};
  const ExpertPlacement placement = Place(zero, kExampleFleet);
  EXPECT_THAT(placement.logcnt,
              ElementsAre(3, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1));
}

TEST(PlacementTest, OneSlotAGpuKeepsTheOrderOfReplication) {
  const Rows loads = {{1, 9, 6}};
  EXPECT_THAT(Place(loads, {.num_replicas = 5, .num_gpus = 5}).phy2log,
              ElementsAre(0, 1, 2, 1, 2));
}

// --- GPUs that differ ---

TEST(UnevenPlacementTest, SlotsFollowMemoryAndLoadFollowsSpeed) {
  // Six equal experts: four fit the fast GPU with its doubled rate.
  const Rows loads = {{1, 1, 1, 1, 1, 1}};
  const ExpertPlacement placement = Place(loads, {.num_replicas = 6,
                                                  .num_gpus = 2,
                                                  .gpu_slots = {2, 4},
                                                  .gpu_speeds = {1, 2}});
  ExpectConsistent(placement);
  EXPECT_THAT(placement.first_slots, ElementsAre(0, 2, 6));
  const std::vector<double> gpus = GpuLoads(placement, 0, loads[0]);
  EXPECT_THAT(gpus, ElementsAre(2, 4));
  EXPECT_EQ(Imbalance(gpus, {1, 2}), 1);
}

TEST(UnevenPlacementTest, AFastGpuWithAsManySlotsGetsTheHeavyCopies) {
  const Rows loads = {{8, 7, 2, 1}};
  const ExpertPlacement placement =
      Place(loads, {.num_replicas = 4, .num_gpus = 2, .gpu_speeds = {1, 5}});
  EXPECT_THAT(GpuLoads(placement, 0, loads[0]), ElementsAre(3, 15));
  // With one slot each too, where GPUs that are alike take experts in order.
  const Rows two = {{1, 9}};
  EXPECT_THAT(
      Place(two, {.num_replicas = 2, .num_gpus = 2, .gpu_speeds = {1, 2}})
          .phy2log,
      ElementsAre(0, 1));
  EXPECT_THAT(
      Place(two, {.num_replicas = 2, .num_gpus = 2, .gpu_speeds = {2, 1}})
          .phy2log,
      ElementsAre(1, 0));
}

TEST(UnevenPlacementTest, NodesGetGroupsInProportionToTheirSlots) {
  std::mt19937 random(7);
  Rows loads(3);
  for (auto& layer : loads) {
    for (int e = 0; e < 32; ++e) {
      layer.push_back(static_cast<float>(random() % 1000));
    }
  }
  // 60 and 20 slots for 8 groups of 4 experts: 6 and 2 groups.
  const ExpertPlacement placement =
      Place(loads, {.num_replicas = 80,
                    .num_groups = 8,
                    .num_nodes = 2,
                    .num_gpus = 4,
                    .gpu_slots = {30, 30, 15, 5}});
  ExpectConsistent(placement);
  for (int x = 0; x < 3; ++x) {
    std::set<int> first, second;
    for (int slot = 0; slot < 80; ++slot) {
      (slot < 60 ? first : second).insert(placement.phy2log[x * 80 + slot] / 4);
    }
    EXPECT_EQ(first.size(), 6u);
    EXPECT_EQ(second.size(), 2u);
  }
}

// Over many loads and fleets: the time of the last GPU, against a placement
// that takes all of them for alike.
TEST(UnevenPlacementTest, IsFasterThanPlainWhereSpeedsDiffer) {
  std::mt19937 random(11);
  int better = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int gpus = 2 + static_cast<int>(random() % 6);
    const int experts = gpus * (4 + static_cast<int>(random() % 12));
    Rows loads(1);
    for (int e = 0; e < experts; ++e) {
      loads[0].push_back(1000.0f / static_cast<float>(1 + e));
    }
    std::shuffle(loads[0].begin(), loads[0].end(), random);
    PlacementRequest request = {.num_replicas = experts + 2 * gpus,
                                .num_gpus = gpus};
    const ExpertPlacement plain = Place(loads, request);
    for (int g = 0; g < gpus; ++g) {
      request.gpu_speeds.push_back(g == 0 ? 0.5f : 1.0f);
    }
    const ExpertPlacement uneven = Place(loads, request);
    ExpectConsistent(uneven);
    const double before =
        Imbalance(GpuLoads(plain, 0, loads[0]), request.gpu_speeds);
    const double after =
        Imbalance(GpuLoads(uneven, 0, loads[0]), request.gpu_speeds);
    EXPECT_LE(after, before) << "trial " << trial;
    EXPECT_GE(after, 1 - 1e-6);
    if (after < 0.8 * before) ++better;
  }
  EXPECT_GE(better, 150);
}

TEST(SlotsByMemoryTest, SplitsInProportionAndLeavesNobodyOut) {
  EXPECT_THAT(SlotsByMemory(100, {128, 128, 64}).value(),
              ElementsAre(40, 40, 20));
  EXPECT_THAT(SlotsByMemory(288, {128, 128, 64}).value(),
              ElementsAre(115, 115, 58));
  EXPECT_THAT(SlotsByMemory(10, {1, 1, 1}).value(), ElementsAre(4, 3, 3));
  EXPECT_THAT(SlotsByMemory(4, {1000, 1, 1}).value(), ElementsAre(2, 1, 1));
}

// --- Requests that cannot be met ---

struct BadRequest {
  std::vector<float> loads;
  int experts;
  PlacementRequest request;
  std::string message;
};

TEST(PlacementErrorTest, NamesValueAndExpectation) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> four = {1, 2, 3, 4};
  const auto hierarchical = PlacementPolicy::kHierarchical;
  const std::vector<BadRequest> cases = {
      {{}, 4, {.num_replicas = 4}, "0 loads of 4 experts"},
      {four, 3, {.num_replicas = 4}, "4 loads of 3 experts"},
      {four, 0, {.num_replicas = 4}, "4 loads of 0 experts"},
      {{1, 2, 3, -4, 1, 1},
       2,
       {.num_replicas = 4},
       "layer 1, expert 1: load -4, want a finite number that is not negative"},
      {{1, nan}, 2, {.num_replicas = 4}, "layer 0, expert 1: load nan"},
      {{1, INFINITY}, 2, {.num_replicas = 4}, "layer 0, expert 1: load inf"},
      {{3e38f, 3e38f}, 2, {.num_replicas = 2}, "layer 0: the sum of its loads"},
      {four, 4, {.num_replicas = 3}, "replicas 3, want 4 (one of each expert)"},
      {four, 4, {.num_replicas = 1 << 20}, "replicas 1048576, want 4"},
      {four,
       4,
       {.num_replicas = 5, .num_gpus = 2},
       "replicas 5, want a multiple of the 2 GPUs"},
      {four, 4, {.num_replicas = 4, .num_gpus = 0}, "GPUs 0, want 1 to"},
      {four,
       4,
       {.num_replicas = 4, .num_groups = 0},
       "groups 0, want at least 1"},
      {four,
       4,
       {.num_replicas = 4, .num_groups = 8},
       "experts 4, want a multiple of the 8 groups"},
      {four,
       4,
       {.num_replicas = 4, .num_nodes = -1},
       "nodes -1, want at least 1"},
      {four,
       4,
       {.num_replicas = 4, .num_groups = 3},
       "experts 4, want a multiple of the 3 groups"},
      {four,
       4,
       {.num_replicas = 6, .num_groups = 2, .num_nodes = 2, .num_gpus = 3},
       "GPUs 3, want a multiple of the 2 nodes"},
      {four,
       4,
       {.num_replicas = 6,
        .num_groups = 1,
        .num_nodes = 2,
        .num_gpus = 2,
        .policy = hierarchical},
       "groups 1, want a multiple of the 2 nodes"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_slots = {3, 2, 1}},
       "number of GPUs with slots 3, want 2"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_slots = {3, 2}},
       "slots of all GPUs together 5, want 6"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_slots = {6, 0}},
       "GPU 1: slots 0, want at least 1"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_speeds = {1}},
       "number of GPUs with speeds 1, want 2"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_speeds = {1, 0}},
       "GPU 1: speed 0, want more than 0"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_speeds = {1e-8f, 1}},
       "GPU 0: speed 1e-08"},
      {four,
       4,
       {.num_replicas = 6, .num_gpus = 2, .gpu_speeds = {1, nan}},
       "GPU 1: speed nan"},
      {std::vector<float>(8, 1),
       8,
       {.num_replicas = 8,
        .num_groups = 4,
        .num_nodes = 2,
        .num_gpus = 2,
        .gpu_slots = {5, 3}},
       "4 groups of 2 experts do not fit the slots of 2 nodes"},
      {{1, 1, 1, 1},
       4,
       {.num_replicas = 24,
        .num_groups = 4,
        .num_nodes = 2,
        .num_gpus = 2,
        .gpu_slots = {22, 2}},
       "node 1: none of 4 groups for its 2 slots"},
  };
  for (const BadRequest& bad : cases) {
    const auto placement = PlaceExperts(bad.loads, bad.experts, bad.request);
    ASSERT_FALSE(placement.ok()) << bad.message;
    EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(placement.status().message()),
                HasSubstr(bad.message));
  }
  // The global policy looks at neither groups nor nodes.
  EXPECT_TRUE(PlaceExperts(four, 4,
                           {.num_replicas = 4,
                            .num_groups = 0,
                            .num_nodes = -1,
                            .policy = PlacementPolicy::kGlobal})
                  .ok());
  // And it is the one where nodes do not divide groups.
  EXPECT_TRUE(PlaceExperts(four, 4,
                           {.num_replicas = 4, .num_groups = 5, .num_nodes = 2})
                  .ok());
  EXPECT_FALSE(SlotsByMemory(2, {1, 1, 1}).ok());
  EXPECT_FALSE(SlotsByMemory(3, {1, 0, 1}).ok());
  EXPECT_FALSE(SlotsByMemory(3, {}).ok());
}

// One copy of a heavy expert after the other makes log2phy wide.
TEST(PlacementErrorTest, RefusesAResultThatNobodyCouldStore) {
  std::vector<float> loads(1024, 0.0f);
  loads[0] = 1;
  const auto placement =
      PlaceExperts(loads, 1024, {.num_replicas = kMaxReplicas});
  ASSERT_FALSE(placement.ok());
  EXPECT_THAT(std::string(placement.status().message()),
              HasSubstr("layers x experts x most copies"));
}

}  // namespace
}  // namespace ringfleet::cluster
