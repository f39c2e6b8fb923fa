// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/rank_world.h"

#include <algorithm>
#include <thread>

#include "cluster/checkpoint/open_model.h"
#include "gtest/gtest.h"
#include "worker/execution/expert_migration.h"
#include "worker/fused/timed_communicator.h"
#include "worker/loading/shard_loader.h"
#include "worker/model/kv_cache.h"
#include "worker/model/model.h"

namespace ringfleet::testing {

// Weights with the cache and model over them.
struct RankWorld::Instance {
  Instance(const cluster::ModelSpec& spec, const cluster::ShardPlan& plan,
           const cluster::ExpertLayout& layout, worker::Weights loaded,
           kernels::Dtype cache_dtype, cluster::Wire wire,
           const RankWorldOptions& options, kernels::ThreadPool& pool,
           worker::TimedCommunicator& communicator,
           worker::TimedCommunicator* data_axis)
      : weights(std::move(loaded)),
        cache(*worker::KvCache::Create(
            cache_dtype, worker::Model::CacheLayers(spec, weights),
            spec.kv_lora_rank, spec.qk_rope_head_dim,
            {.slots = options.slots,
             .context = options.context,
             .blocks = static_cast<int>(
                 options.slots * kernels::CacheBlocks(options.context))})),
        model(spec, plan, layout, weights, pool, cache, communicator, data_axis,
              {.wire = wire,
               .fuse_rows = options.fuse_rows,
               .expert_capacity = options.expert_capacity,
               .reproducible = options.reproducible,
               .tiles = options.tiles}) {}
  worker::Weights weights;
  worker::KvCache cache;
  worker::Model model;
};

struct RankWorld::Rank {
  Rank(const cluster::ShardPlan& shard_plan, MemoryWorld* group,
       MemoryWorld* axis, int threads)
      : plan(shard_plan),
        pool(threads),
        communicator(group, plan.rank % group->size()),
        timed(&communicator, absl::Seconds(60)),
        data_communicator(axis, plan.data_group),
        data_axis(&data_communicator, absl::Seconds(60),
                  worker::TimedCommunicator::Use::kPlainExchanges) {}
  cluster::ShardPlan plan;
  cluster::ExpertLayout layout;
  worker::LoadOptions load_options;
  kernels::ThreadPool pool;
  MemoryCommunicator communicator;
  worker::TimedCommunicator timed;
  MemoryCommunicator data_communicator;
  worker::TimedCommunicator data_axis;
  std::unique_ptr<Instance> main;
  std::unique_ptr<Instance> reference;
  std::unique_ptr<worker::Executor> executor;
};

RankWorld::RankWorld(const std::string& model_dir,
                     const RankWorldOptions& options)
    : slots_(options.slots), context_(options.context) {
  auto spec = cluster::LoadModelSpec(model_dir);
  EXPECT_TRUE(spec.ok()) << spec.status();
  spec_ = *spec;
  auto checkpoint = cluster::OpenCheckpoint(model_dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  checkpoint_ = *std::move(checkpoint);
  const cluster::MeshShape& mesh = options.mesh;
  for (int group = 0; group < mesh.data; ++group) {
    groups_.push_back(std::make_unique<MemoryWorld>(mesh.group_size()));
  }
  for (int rank = 0; rank < mesh.group_size(); ++rank) {
    axes_.push_back(std::make_unique<MemoryWorld>(mesh.data));
  }
  for (int index = 0; index < mesh.world_size(); ++index) {
    const cluster::ShardPlan plan = *cluster::PlanShard(spec_, mesh, index);
    auto rank = std::make_unique<Rank>(plan, groups_[plan.data_group].get(),
                                       axes_[index % mesh.group_size()].get(),
                                       options.threads);
    rank->layout =
        cluster::ExpertLayout(spec_.num_hidden_layers + 1,
                              spec_.n_routed_experts, mesh.num_coordinates());
    const absl::Status merged = rank->layout.Merge(options.experts);
    EXPECT_TRUE(merged.ok()) << merged;
    rank->load_options = {.form = options.form, .native = options.native};
    const auto make = [&](worker::LoadOptions load, cluster::Wire wire) {
      load.experts = &rank->layout;
      auto weights = worker::LoadShard(
          *checkpoint_, spec_, rank->plan, load, rank->pool,
          [](uint64_t, uint64_t) { return absl::OkStatus(); });
      EXPECT_TRUE(weights.ok()) << weights.status();
      return std::make_unique<Instance>(
          spec_, rank->plan, rank->layout, *std::move(weights),
          load.form == kernels::WeightForm::kF32 ? kernels::Dtype::kF32
                                                 : kernels::Dtype::kBf16,
          wire, options, rank->pool, rank->timed,
          mesh.data == 1 ? nullptr : &rank->data_axis);
    };
    rank->main = make(rank->load_options, options.wire);
    worker::ModelInstance reference;
    if (options.reference) {
      rank->reference =
          make({.form = kernels::WeightForm::kF32}, cluster::Wire::kF32);
      reference = {&rank->reference->model, &rank->reference->cache};
    }
    rank->executor = std::make_unique<worker::Executor>(
        kEpoch, worker::ModelInstance{&rank->main->model, &rank->main->cache},
        reference, options.slots, options.prefill_strategy);
    ranks_.push_back(std::move(rank));
  }
}

RankWorld::~RankWorld() = default;

void GrantContext(int slots, int context, v1::StepPlan* plan) {
  const auto each = static_cast<uint32_t>(kernels::CacheBlocks(context));
  for (const v1::Admission& admission : plan->admissions()) {
    v1::BlockGrant* grant = plan->add_grants();
    grant->set_slot(admission.slot());
    const uint32_t first =
        admission.slot() % static_cast<uint32_t>(slots) * each;
    for (uint32_t i = 0; i < each; ++i) grant->add_blocks(first + i);
  }
}

std::vector<absl::Status> RankWorld::TryStep(
    v1::StepPlan plan, std::vector<v1::StepResult>* results) {
  if (plan.epoch() == 0) plan.set_epoch(kEpoch);
  if (plan.step() == 0) plan.set_step(++step_);
  if (plan.grants().empty()) GrantContext(slots_, context_, &plan);
  results->assign(ranks_.size(), v1::StepResult());
  std::vector<absl::Status> statuses(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = ranks_[rank]->executor->Step(plan, &(*results)[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::vector<v1::StepResult> RankWorld::Step(v1::StepPlan plan) {
  std::vector<v1::StepResult> results;
  for (const absl::Status& status : TryStep(std::move(plan), &results)) {
    EXPECT_TRUE(status.ok()) << status;
  }
  return results;
}

void RankWorld::MoveExperts(const cluster::ExpertLayout& next) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    const int coordinate = rank->plan.expert_coordinate;
    const auto move = [&](const worker::LoadOptions& load,
                          worker::Weights* weights) {
      worker::StagedExperts staged = {
          .layout = next,
          .missing = worker::MissingExperts(rank->layout, next, coordinate)};
      for (const worker::MissingExpert& missing : staged.missing) {
        auto loaded =
            worker::LoadExpert(*checkpoint_, spec_, rank->plan, load,
                               missing.layer, missing.expert, rank->pool);
        EXPECT_TRUE(loaded.ok()) << loaded.status();
        staged.loaded.push_back(*std::move(loaded));
      }
      worker::SwitchExperts(rank->layout, coordinate, std::move(staged),
                            weights);
    };
    move(rank->load_options, &rank->main->weights);
    if (rank->reference != nullptr) {
      move({.form = kernels::WeightForm::kF32}, &rank->reference->weights);
    }
    rank->layout = next;
  }
}

const std::set<size_t>& RankWorld::SegmentBytes(int rank) const {
  return ranks_[rank]->communicator.segment_bytes();
}

const std::set<uint64_t>& RankWorld::Checks(int rank) const {
  return ranks_[rank]->communicator.checks();
}

int RankWorld::data_group(int rank) const {
  return ranks_[rank]->plan.data_group;
}

const cluster::ExpertLayout& RankWorld::experts() const {
  return ranks_[0]->layout;
}

const std::vector<std::vector<uint64_t>>& RankWorld::ExpertCounts(
    int rank) const {
  return ranks_[rank]->main->model.expert_counts();
}

const std::vector<uint64_t>& RankWorld::DroppedCounts(int rank) const {
  return ranks_[rank]->main->model.dropped_counts();
}

v1::ScoreResult ScorePrompt(RankWorld& world, const std::vector<uint32_t>& ids,
                            const v1::ScoreOptions& options, int span) {
  v1::ScoreResult merged;
  for (size_t done = 0; done < ids.size();) {
    v1::StepPlan plan;
    if (done == 0) {
      v1::Admission* admission = plan.add_admissions();
      admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
      *admission->mutable_score() = options;
    }
    v1::PrefillSpan* prefill = plan.add_prefills();
    prefill->set_count(std::min<size_t>(span, ids.size() - done));
    done += prefill->count();
    const std::vector<v1::StepResult> results = world.Step(plan);
    EXPECT_EQ(results[0].slots_size(), 1);
    if (results[0].slots_size() != 1) return merged;
    v1::ScoreResult score = results[0].slots(0).score();
    score.set_kl_sum(merged.kl_sum() + score.kl_sum());
    score.set_compared(merged.compared() + score.compared());
    score.set_top1_agreements(merged.top1_agreements() +
                              score.top1_agreements());
    merged.MergeFrom(score);
  }
  v1::StepPlan release;
  release.add_releases(0);
  world.Step(release);
  return merged;
}

GeneratedTokens GenerateTokens(RankWorld& world,
                               const std::vector<uint32_t>& ids,
                               const v1::SamplingParams& sampling, int count,
                               int span) {
  GeneratedTokens generated;
  for (size_t done = 0; static_cast<int>(generated.ids.size()) < count;) {
    v1::StepPlan plan;
    if (done == 0) {
      v1::Admission* admission = plan.add_admissions();
      admission->mutable_prompt_ids()->Add(ids.begin(), ids.end());
      *admission->mutable_sampling() = sampling;
      admission->set_max_tokens(count);
    }
    if (done < ids.size()) {
      v1::PrefillSpan* prefill = plan.add_prefills();
      prefill->set_count(std::min<size_t>(span, ids.size() - done));
      done += prefill->count();
    } else {
      plan.add_decodes()->set_slot(0);
    }
    const std::vector<v1::StepResult> results = world.Step(plan);
    for (int rank = 0; rank < world.size(); ++rank) {
      if (world.data_group(rank) != 0) continue;  // Of slot 0.
      v1::StepResult agreed = results[rank];  // But for what each rank reads.
      agreed.set_bytes_read(results[0].bytes_read());
      EXPECT_EQ(agreed.SerializeAsString(), results[0].SerializeAsString());
    }
    if (done < ids.size()) continue;
    EXPECT_EQ(results[0].slots_size(), 1);
    if (results[0].slots_size() != 1) return generated;
    generated.ids.push_back(results[0].slots(0).tokens(0));
    generated.logprobs.push_back(results[0].slots(0).logprobs(0));
  }
  v1::StepPlan release;
  release.add_releases(0);
  world.Step(release);
  return generated;
}

}  // namespace ringfleet::testing
