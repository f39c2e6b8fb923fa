// SPDX-License-Identifier: Apache-2.0
#include "coordinator/fleet/bench_run.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/model/published_sizes.h"
#include "cluster/process/build_info.h"
#include "cluster/process/status_macros.h"
#include "coordinator/scheduling/bench_planner.h"
#include "coordinator/scheduling/scheduler.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;

constexpr absl::Duration kStepPoll = absl::Milliseconds(50);
constexpr uint32_t kMaxRepetitions = 1000;

absl::Status CheckRequest(const v1::BenchRequest& request, Fleet& fleet) {
  if (request.tests().empty()) {
    return absl::InvalidArgumentError("bench: no test, want one or more");
  }
  if (request.repetitions() < 1 || request.repetitions() > kMaxRepetitions) {
    return absl::InvalidArgumentError(
        absl::StrCat("bench: ", request.repetitions(), " repetitions, want 1 ",
                     "to ", kMaxRepetitions));
  }
  const std::optional<BenchRoom> room = fleet.bench_room();
  if (!room.has_value()) {
    return absl::UnavailableError("the fleet is not ready: it forms again");
  }
  for (const v1::BenchTest& test : request.tests()) {
    RF_RETURN_IF_ERROR(CheckBenchTest(test, *room));
  }
  return absl::OkStatus();
}

uint32_t BosId(const ServedModel& model) {
  if (model.spec().bos_token_id.has_value()) return *model.spec().bos_token_id;
  const auto tokenizer = model.tokenizer();
  return tokenizer.ok() ? (*tokenizer)->bos_id().value_or(0) : 0;
}

absl::StatusOr<v1::BenchProgress> MakeSetup(const v1::BenchRequest& request,
                                            const ServedModel& model,
                                            Fleet& fleet) {
  v1::BenchProgress progress;
  v1::BenchProgress::Setup* setup = progress.mutable_setup();
  const v1::ClusterState state = fleet.State();
  setup->set_model(state.model());
  setup->set_model_type(model.spec().model_type);
  setup->set_parameters(cluster::CountParameters(model.spec()));
  setup->set_dtype(state.dtype());
  setup->set_cache_dtype(fleet.cache_dtype());
  setup->set_wire(state.wire());
  setup->set_world(state.mesh().data() * state.mesh().expert() *
                   state.mesh().tensor());
  for (const v1::WorkerState& worker : state.workers()) {
    setup->set_weight_bytes(setup->weight_bytes() + worker.resident_bytes());
  }
  setup->set_hosts(static_cast<uint32_t>(fleet.CountHosts()));
  setup->set_prefill_chunk(kPrefillChunk);
  *setup->mutable_build() = cluster::GetBuildInfo();
  RF_ASSIGN_OR_RETURN(const v1::StatisticsResponse statistics,
                      fleet.Statistics(/*reset_expert_counts=*/false,
                                       Deadline::After(kStatisticsTimeout)));
  setup->set_threads(statistics.threads());
  setup->set_cpu(statistics.cpu());
  return progress;
}

// One test, from taking the fleet to giving it back. `on_owned`, and `on_rest`
// before the first and after each sample, are called while nothing else runs
// there.
absl::Status RunTest(
    const std::shared_ptr<BenchPlanner>& planner, bool only_if_idle,
    Fleet& fleet, const std::function<bool()>& cancelled,
    absl::FunctionRef<absl::Status()> on_owned,
    absl::FunctionRef<absl::Status(const std::optional<BenchEvents::Sample>&)>
        on_rest) {
  RF_RETURN_IF_ERROR(fleet.StartBench(planner, only_if_idle));
  std::optional<BenchEvents::Sample> sample;  // The latest.
  while (true) {
    const auto event = planner->events().Pop(Deadline::After(kStepPoll));
    absl::Status status;
    if (!event.has_value()) {
      if (cancelled()) {
        status = absl::CancelledError("bench: the caller has left");
      }
    } else if (std::holds_alternative<BenchEvents::Owned>(*event)) {
      status = on_owned();
      if (status.ok()) fleet.GoOnWithBench(*planner);
    } else if (std::holds_alternative<BenchEvents::Rests>(*event)) {
      status = on_rest(sample);
      if (status.ok()) fleet.GoOnWithBench(*planner);
    } else if (const auto* timed = std::get_if<BenchEvents::Sample>(&*event)) {
      sample = *timed;
    } else {
      return std::get<absl::Status>(*event);
    }
    if (!status.ok()) {
      fleet.CancelBench(*planner, status);
      return status;
    }
  }
}

}  // namespace

absl::Status RunBench(
    const v1::BenchRequest& request, const ServedModel& model, Fleet& fleet,
    const std::function<bool()>& cancelled,
    absl::FunctionRef<bool(const v1::BenchProgress&)> report) {
  RF_RETURN_IF_ERROR(CheckRequest(request, fleet));
  const absl::Status left = absl::CancelledError("bench: the caller has left");
  for (int index = 0; index < request.tests_size(); ++index) {
    const Deadline delay = Deadline::After(
        absl::Milliseconds(index == 0 ? 0 : request.delay_ms()));
    while (!delay.Expired()) {
      if (cancelled()) return left;
      absl::SleepFor(std::min(delay.Remaining(), kStepPoll));
    }
    const auto planner = std::make_shared<BenchPlanner>(
        BenchPlanner::Options{
            .test = request.tests(index),
            .repetitions = request.repetitions(),
            .warmup = !request.no_warmup(),
            .vocab_size = static_cast<uint32_t>(model.spec().vocab_size),
            .bos_id = BosId(model)},
        [] { return Deadline::Clock::now(); });
    double before = 0;
    RF_RETURN_IF_ERROR(RunTest(
        planner, /*only_if_idle=*/index == 0, fleet, cancelled,
        [&]() -> absl::Status {
          if (index == 0) {
            RF_ASSIGN_OR_RETURN(const v1::BenchProgress setup,
                                MakeSetup(request, model, fleet));
            if (!report(setup)) return left;
          }
          v1::BenchProgress progress;
          progress.mutable_started()->set_test(index);
          progress.mutable_started()->set_unix_ms(
              absl::ToUnixMillis(absl::Now()));
          return report(progress) ? absl::OkStatus() : left;
        },
        [&](const std::optional<BenchEvents::Sample>& sample) -> absl::Status {
          double after = 0;
          if (!request.no_memory_test()) {
            RF_ASSIGN_OR_RETURN(after, fleet.MeasureHostRead());
          }
          const double host_read = (std::exchange(before, after) + after) / 2;
          if (!sample.has_value()) return absl::OkStatus();
          v1::BenchProgress progress;
          progress.mutable_sample()->set_test(index);
          progress.mutable_sample()->set_repetition(sample->repetition);
          progress.mutable_sample()->set_time_ns(sample->time_ns);
          progress.mutable_sample()->set_bytes_read(sample->bytes_read);
          progress.mutable_sample()->set_host_read_gbps(host_read);
          return report(progress) ? absl::OkStatus() : left;
        }));
  }
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator
