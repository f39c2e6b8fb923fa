// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/status_watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/fleet_json.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/session.h"
#include "coordinator/metrics/histogram.h"

namespace ringfleet::coordinator::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterruptPoll{20};
// Terminal sequences: to the first cell, erase the rest of the line, erase all
// lines below.
constexpr char kHome[] = "\x1b[H";
constexpr char kEraseLine[] = "\x1b[K\n";
constexpr char kEraseBelow[] = "\x1b[J";

double Difference(uint64_t before, uint64_t after) {
  return static_cast<double>(after - before);
}

// Returns the largest of a number of each layer as "1.23 (layer 4)"; "" if all
// are 0.
std::string Largest(const v1::FleetFigures& figures,
                    double (v1::ExpertImbalance::*number)() const) {
  const v1::ExpertImbalance* largest = nullptr;
  for (const v1::ExpertImbalance& layer : figures.experts()) {
    if (largest == nullptr || (layer.*number)() > (largest->*number)()) {
      largest = &layer;
    }
  }
  if (largest == nullptr || (largest->*number)() == 0) return "";
  return absl::StrFormat("%.2f (layer %u)", (largest->*number)(),
                         largest->layer());
}

// Returns the longest of a worker's shortest round trips: "85 us to 3".
std::string FarthestPeer(const v1::WorkerState& worker) {
  const v1::RoundTrip* farthest = nullptr;
  for (const v1::RoundTrip& trip : worker.figures().round_trips()) {
    if (farthest == nullptr || trip.ns() > farthest->ns()) farthest = &trip;
  }
  if (farthest == nullptr) return "-";
  return absl::StrFormat("%.0f us to %u",
                         static_cast<double>(farthest->ns()) * 1e-3,
                         farthest->peer());
}

double Mebibytes(uint64_t bytes) {
  return static_cast<double>(bytes) / 1048576.0;
}

// Text from hosts must not move the terminal's cursor.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text;
}

class StatusScreen {
 public:
  explicit StatusScreen(bool json)
      : json_(json), terminal_(!json && isatty(STDOUT_FILENO) == 1) {}

  absl::Status ShowState(const v1::ClusterState& state,
                         const std::optional<StatusRates>& rates) {
    if (json_) return PrintJson(WatchJson(state, rates));
    return ShowText(WatchText(state, rates));
  }

  absl::Status ShowLost(const absl::Status& status) {
    if (json_) {
      return PrintJson({{"error",
                         {{"code", absl::StatusCodeToString(status.code())},
                          {"message", std::string(status.message())}}}});
    }
    return ShowText(Printable(std::string(status.message())) + "\n");
  }

 private:
  absl::Status ShowText(const std::string& text) {
    if (!terminal_) return PrintText(text + "\n");
    const std::string lines = absl::StrReplaceAll(text, {{"\n", kEraseLine}});
    const std::string screen = absl::StrCat(kHome, lines, kEraseBelow);
    // The lines before the command stay above the view.
    return PrintText(
        std::exchange(begun_, true) ? screen : absl::StrCat("\x1b[2J", screen));
  }

  const bool json_;
  const bool terminal_;
  bool begun_ = false;
};

}  // namespace

std::optional<StatusRates> RatesBetween(const v1::ClusterState& before,
                                        const v1::ClusterState& after,
                                        absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  const v1::FleetFigures& was = before.figures();
  const v1::FleetFigures& is = after.figures();
  const uint64_t steps_before = CountOf(was.step_sequences());
  const uint64_t steps_after = CountOf(is.step_sequences());
  if (before.pid() != after.pid() || steps_after < steps_before ||
      seconds <= 0) {
    return std::nullopt;
  }
  StatusRates rates;
  rates.prompt_tokens =
      Difference(was.prompt_tokens(), is.prompt_tokens()) / seconds;
  rates.generated_tokens =
      Difference(was.generated_tokens(), is.generated_tokens()) / seconds;
  const double steps = Difference(steps_before, steps_after);
  rates.steps = steps / seconds;
  if (steps > 0) {
    rates.step_sequences =
        (is.step_sequences().sum() - was.step_sequences().sum()) / steps;
  }
  return rates;
}

std::string WatchText(const v1::ClusterState& state,
                      const std::optional<StatusRates>& rates) {
  const v1::FleetFigures& figures = state.figures();
  const v1::CacheUse& cache = state.cache();
  std::string text = absl::StrFormat(
      "fleet %s: %s, epoch %u (%u ready, %u failed so far)\n",
      Printable(state.name()), FleetStateText(state), state.epoch(),
      figures.ready_epochs(), figures.failed_epochs());
  if (!state.error().empty()) {
    absl::StrAppend(&text, "error ", Printable(state.error()), "\n");
  }
  absl::StrAppendFormat(
      &text, "model %s, mesh data %u x expert %u x tensor %u, context %u\n",
      Printable(state.model()), state.mesh().data(), state.mesh().expert(),
      state.mesh().tensor(), state.context());
  absl::StrAppendFormat(&text, "requests %u running, %u waiting\n",
                        state.requests_running(), state.requests_waiting());
  if (rates.has_value()) {
    absl::StrAppendFormat(
        &text,
        "tokens/s %.1f generated, %.1f of prompts; %.1f steps/s of %.1f "
        "sequences\n",
        rates->generated_tokens, rates->prompt_tokens, rates->steps,
        rates->step_sequences);
  } else {
    absl::StrAppendFormat(&text, "tokens %u generated, %u of prompts so far\n",
                          figures.generated_tokens(), figures.prompt_tokens());
  }
  absl::StrAppendFormat(
      &text,
      "cache %u of %u blocks used, %u kept, %u of %u prompt tokens reused, %u "
      "preemptions, %u positions recomputed, %u "
      "replays\n",
      cache.blocks_used(), cache.blocks_total(), cache.blocks_kept(),
      cache.prefix_hits(), cache.prefix_queries(), cache.preemptions(),
      cache.recomputed_positions(), figures.replays());
  const std::string expert = Largest(figures, &v1::ExpertImbalance::expert);
  const std::string coordinate =
      Largest(figures, &v1::ExpertImbalance::coordinate);
  if (!expert.empty()) {
    absl::StrAppend(&text, "imbalance: busiest expert ", expert,
                    coordinate.empty() ? "" : ", busiest coordinate ",
                    coordinate, " times the mean\n");
  }
  if (figures.sent_bytes_per_token() > 0) {
    absl::StrAppendFormat(&text, "workers send %.1f KiB for each token\n",
                          figures.sent_bytes_per_token() / 1024);
  }
  absl::StrAppendFormat(&text,
                        "%4s  %-16s %-22s %-10s %11s %9s %10s %14s %9s\n",
                        "rank", "host", "address", "state", "weights MiB",
                        "cache MiB", "memory MiB", "farthest peer", "heard");
  for (const v1::WorkerState& worker : state.workers()) {
    absl::StrAppendFormat(
        &text, "%4u  %-16s %-22s %-10s %11.1f %9.1f %10.1f %14s %5.1fs ago\n",
        worker.rank(), Printable(worker.host()), Printable(worker.address()),
        MemberStateName(worker.state()), Mebibytes(worker.resident_bytes()),
        Mebibytes(worker.cache_bytes()),
        Mebibytes(worker.figures().memory_bytes()), FarthestPeer(worker),
        worker.heartbeat_age_ms() * 1e-3);
  }
  return text;
}

Json WatchJson(const v1::ClusterState& state,
               const std::optional<StatusRates>& rates) {
  Json document = FleetDetails(state);
  document["rates"] =
      rates.has_value()
          ? Json{{"prompt_tokens_per_second", rates->prompt_tokens},
                 {"generated_tokens_per_second", rates->generated_tokens},
                 {"steps_per_second", rates->steps},
                 {"mean_step_sequences", rates->step_sequences}}
          : Json(nullptr);
  return document;
}

absl::Status WatchStatus(const WatchOptions& options) {
  RF_ASSIGN_OR_RETURN(const FleetPlace place, FindFleet(options.fleet));
  StatusScreen screen(options.json);
  Interrupt& interrupt = Interrupt::Get();
  std::optional<v1::ClusterState> last;
  Clock::time_point last_look;
  while (true) {
    const auto look = Clock::now();
    absl::StatusOr<v1::ClusterState> state = DescribeFleet(place.address);
    if (interrupt.requested()) return absl::OkStatus();
    if (state.ok()) {
      if (place.config.has_value()) {
        RF_RETURN_IF_ERROR(CheckIsOfFile(*state, *place.config));
      }
      const std::optional<StatusRates> rates =
          last.has_value()
              ? RatesBetween(*last, *state, absl::FromChrono(look - last_look))
              : std::nullopt;
      RF_RETURN_IF_ERROR(screen.ShowState(*state, rates));
      last = *std::move(state);
      last_look = look;
    } else {
      RF_RETURN_IF_ERROR(screen.ShowLost(absl::UnavailableError(absl::StrCat(
          "status: no answer from the coordinator at ", place.address, " (",
          state.status().message(), "); trying again"))));
      last.reset();
    }
    const auto next = look + absl::ToChronoNanoseconds(options.interval);
    do {
      if (interrupt.requested()) return absl::OkStatus();
      std::this_thread::sleep_for(kInterruptPoll);
    } while (Clock::now() < next);
  }
}

}  // namespace ringfleet::coordinator::cli
