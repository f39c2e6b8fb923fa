// SPDX-License-Identifier: Apache-2.0
// A worker without a model, over real gRPC on loopback. It keeps the contract
// of the Worker service. Token k of a request, from 0, is the first id of its
// prompt plus k. The log-probability of a prompt's id is -id. A test can make
// the worker fail.
#ifndef RINGFLEET_TESTS_TESTING_FAKE_WORKER_H_
#define RINGFLEET_TESTS_TESTING_FAKE_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cluster/process/build_info.h"
#include "cluster/process/status.h"
#include "cluster/recording/trace_recorder.h"
#include "cluster/rpc/coordinator_id.h"
#include "kernels/check.h"
#include "kernels/mutex.h"
#include "protos/cluster.pb.h"
#include "protos/host.grpc.pb.h"
#include "protos/worker.grpc.pb.h"

namespace ringfleet::testing {

class FakeWorker final : public v1::Worker::Service {
 public:
  // Called after each step. May change the result, fail the step or delay it.
  using StepHook =
      std::function<absl::Status(const v1::StepPlan&, v1::StepResult*)>;

  struct Behaviour {
    std::string fingerprint = "f00d";
    uint32_t context = 64;
    uint32_t cache_blocks = 1024;
    std::string missing;  // Text about missing files. Empty: none are missing.
    absl::Status load_error;
    bool hang_in_load = false;  // True: Load lasts until it is cancelled.
    absl::Status connect_error;
    absl::Status reset_error;  // Error of a reset of the token counts.
    absl::Status memory_error;
    absl::Status trace_error;
    int64_t clock_ahead_ns = 0;  // This worker's clock minus the process's.
    std::string host = "one";
    std::string machine;  // Empty: the host's.
    int cpus = 0;         // That it shares; 0: its threads were given.
    StepHook on_step;
  };

  FakeWorker(int rank, Behaviour behaviour)
      : rank_(rank),
        behaviour_(std::move(behaviour)),
        expert_tokens_(7 + rank) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(this);
    builder.RegisterService(&host_);
    server_ = builder.BuildAndStart();
    RF_CHECK(server_ != nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeWorker() override {
    if (killer_.joinable()) killer_.join();
    Die();
  }

  // Cuts all connections, like the end of a process.
  void Die() {
    dead_ = true;
    server_->Shutdown(std::chrono::system_clock::now());
  }
  // Calls Die on another thread. For use inside a call, because Die waits for
  // the end of all calls.
  void DieFromInside() {
    dead_ = true;
    killer_ = std::thread([this] { Die(); });
  }

  v1::RegisterRequest Registration() const {
    v1::RegisterRequest request;
    request.set_rank(rank_);
    request.set_address(address_);
    *request.mutable_build() = cluster::GetBuildInfo();
    request.set_pid(1000 + rank_);
    request.set_host(Now().host);
    v1::ResourcePool* memory = request.add_memory();
    memory->set_id("machine");
    memory->set_amount(1000);
    request.set_machine(Now().machine);
    if (Now().cpus > 0) {
      v1::ResourcePool* cpus = request.add_cpus();
      cpus->set_id("cpus");
      cpus->set_amount(Now().cpus);
    }
    return request;
  }
  const std::string& address() const { return address_; }

  void SetBehaviour(Behaviour behaviour) {
    MutexLock lock(&mu_);
    behaviour_ = std::move(behaviour);
  }
  std::vector<v1::LoadRequest> loads() const {
    MutexLock lock(&mu_);
    return loads_;
  }
  std::vector<v1::ConnectRequest> connects() const {
    MutexLock lock(&mu_);
    return connects_;
  }
  std::vector<v1::Admission> admissions() const {
    MutexLock lock(&mu_);
    return admissions_;
  }
  // Ids that coordinators' calls of Load, Connect and Run have carried.
  std::set<std::string> callers() const {
    MutexLock lock(&mu_);
    return callers_;
  }
  // Tokens of the worker's only expert since the last reset. Starts at 7 +
  // rank.
  uint64_t expert_tokens() const {
    MutexLock lock(&mu_);
    return expert_tokens_;
  }

  grpc::Status FindCheckpoint(grpc::ServerContext*,
                              const v1::FindCheckpointRequest*,
                              v1::FindCheckpointResponse* response) override {
    response->set_missing(Now().missing);
    response->set_complete(response->missing().empty());
    return grpc::Status::OK;
  }

  grpc::Status Load(grpc::ServerContext* context,
                    const v1::LoadRequest* request,
                    grpc::ServerWriter<v1::LoadProgress>* writer) override {
    const Behaviour behaviour = Now();
    {
      MutexLock lock(&mu_);
      loads_.push_back(*request);
      callers_.insert(cluster::CoordinatorIdOf(*context));
    }
    if (!behaviour.load_error.ok()) {
      return cluster::ToGrpc(behaviour.load_error);
    }
    v1::LoadProgress progress;
    progress.set_fingerprint(behaviour.fingerprint);
    progress.set_bytes_total(100);
    progress.set_resident_bytes(200);
    progress.set_context(behaviour.context);
    progress.set_cache_blocks(behaviour.cache_blocks);
    writer->Write(progress);
    if (behaviour.hang_in_load) {
      WaitCancelled(context);
      return grpc::Status::CANCELLED;
    }
    progress.set_bytes_done(100);
    progress.set_done(true);
    writer->Write(progress);
    return grpc::Status::OK;
  }

  grpc::Status Connect(grpc::ServerContext* context,
                       const v1::ConnectRequest* request,
                       v1::ConnectResponse* response) override {
    MutexLock lock(&mu_);
    callers_.insert(cluster::CoordinatorIdOf(*context));
    connects_.push_back(*request);
    context_positions_ = request->context();
    response->set_cache_bytes(300);
    return cluster::ToGrpc(behaviour_.connect_error);
  }

  grpc::Status Run(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StepResult, v1::StepPlan>* stream) override {
    {
      MutexLock lock(&mu_);
      callers_.insert(cluster::CoordinatorIdOf(*context));
    }
    std::map<uint32_t, Sequence> sequences;
    v1::StepPlan plan;
    while (stream->Read(&plan)) {
      v1::StepResult result = Execute(plan, &sequences);
      const StepHook hook = Now().on_step;
      if (hook != nullptr) {
        const absl::Status status = hook(plan, &result);
        if (!status.ok()) {
          // The last result carries the error, and the coordinator ends the
          // stream, like with a real worker.
          result.mutable_error()->set_code(
              static_cast<uint32_t>(status.code()));
          result.mutable_error()->set_message(std::string(status.message()));
          stream->Write(result);
          while (stream->Read(&plan)) {
          }
          return grpc::Status::OK;
        }
      }
      if (dead_) {
        WaitCancelled(context);
        return grpc::Status::CANCELLED;
      }
      stream->Write(result);
    }
    return grpc::Status::OK;
  }

  grpc::Status MeasureMemory(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::MeasureMemoryResponse,
                               v1::MeasureMemoryRequest>* stream) override {
    v1::MeasureMemoryRequest request;
    stream->Read(&request);
    const Behaviour behaviour = Now();
    if (!behaviour.memory_error.ok()) {
      return cluster::ToGrpc(behaviour.memory_error);
    }
    stream->Write(v1::MeasureMemoryResponse());
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;
    v1::MeasureMemoryResponse response;
    for (uint32_t i = 0; i < request.slices(); ++i) {
      response.add_slice_bytes(i == 2 ? 3'000'000'000 : 1'000'000'000);
    }
    stream->Write(response);
    return grpc::Status::OK;
  }

  // Sends two events of one microsecond on the worker's clock: at the begin and
  // at the end of the recording.
  grpc::Status Trace(grpc::ServerContext*,
                     grpc::ServerReaderWriter<v1::TraceChunk, v1::TraceRequest>*
                         stream) override {
    v1::TraceRequest request;
    stream->Read(&request);
    const Behaviour behaviour = Now();
    if (!behaviour.trace_error.ok()) {
      return cluster::ToGrpc(behaviour.trace_error);
    }
    v1::TraceChunk chunk;
    chunk.add_names("began");
    chunk.add_names("ended");
    chunk.set_dropped(request.max_events());
    const auto add = [&](uint32_t name) {
      v1::TraceEvent* event = chunk.add_events();
      event->set_name(name);
      event->set_kind(v1::TraceEvent::KIND_COMPUTE);
      event->set_thread(v1::TraceEvent::THREAD_EXECUTOR);
      event->set_begin_ns(cluster::TraceNow() + behaviour.clock_ahead_ns);
      event->set_duration_ns(1000);
    };
    add(0);
    stream->Write(v1::TraceChunk());
    while (stream->Read(&request)) {
    }
    add(1);
    stream->Write(chunk);
    return grpc::Status::OK;
  }

  grpc::Status Statistics(grpc::ServerContext*,
                          const v1::StatisticsRequest* request,
                          v1::StatisticsResponse* response) override {
    response->set_threads(3);
    response->set_cpu("a fake");
    v1::ExpertCounts* layer = response->add_layers();
    layer->set_layer(1);
    MutexLock lock(&mu_);
    layer->add_tokens(expert_tokens_);
    if (request->reset_expert_counts()) {
      if (!behaviour_.reset_error.ok()) {
        return cluster::ToGrpc(behaviour_.reset_error);
      }
      expert_tokens_ = 0;
    }
    return grpc::Status::OK;
  }

 private:
  struct Sequence {
    v1::Admission admission;
    uint32_t position = 0;  // Number of cached positions.
    uint32_t tokens = 0;
    bool ended = false;
  };

  class FakeHost final : public v1::Host::Service {
   public:
    explicit FakeHost(const FakeWorker* worker) : worker_(worker) {}
    grpc::Status ReadClock(grpc::ServerContext*, const v1::ReadClockRequest*,
                           v1::ClockReading* reading) override {
      reading->set_steady_ns(cluster::TraceNow() +
                             worker_->Now().clock_ahead_ns);
      return grpc::Status::OK;
    }

   private:
    const FakeWorker* const worker_;
  };

  Behaviour Now() const {
    MutexLock lock(&mu_);
    return behaviour_;
  }

  void WaitCancelled(grpc::ServerContext* context) {
    Mutex mu;
    CondVar never;
    MutexLock lock(&mu);
    while (!context->IsCancelled()) {
      never.WaitUntil(
          &mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(2));
    }
  }

  v1::StepResult Execute(const v1::StepPlan& plan,
                         std::map<uint32_t, Sequence>* sequences) {
    v1::StepResult result;
    result.set_epoch(plan.epoch());
    result.set_step(plan.step());
    result.set_bytes_read(100 * (rank_ + 1));
    for (const uint32_t slot : plan.releases()) sequences->erase(slot);
    for (const v1::Admission& admission : plan.admissions()) {
      (*sequences)[admission.slot()].admission = admission;
      MutexLock lock(&mu_);
      admissions_.push_back(admission);
    }
    for (const v1::Rewind& rewind : plan.rewinds()) {
      Sequence& sequence = sequences->at(rewind.slot());
      const uint32_t prompt_n = sequence.admission.prompt_ids_size();
      sequence.position = rewind.length();
      sequence.tokens =
          rewind.length() < prompt_n ? 0 : rewind.length() - prompt_n + 1;
      sequence.ended = false;
    }
    for (const v1::PrefillSpan& span : plan.prefills()) {
      Sequence& sequence = sequences->at(span.slot());
      const v1::Admission& admission = sequence.admission;
      const uint32_t begin = sequence.position;
      sequence.position += span.count();
      const uint32_t prompt_n = admission.prompt_ids_size();
      v1::SlotResult* slot = result.add_slots();
      slot->set_slot(span.slot());
      if (admission.has_score() && rank_ == 0) {
        v1::ScoreResult* score = slot->mutable_score();
        for (uint32_t i = begin; i < std::min(sequence.position, prompt_n - 1);
             ++i) {
          score->add_logprobs(-static_cast<float>(admission.prompt_ids(i + 1)));
          score->set_compared(score->compared() + 1);
        }
        if (sequence.position == prompt_n && admission.score().top() > 0) {
          score->add_top_ids(admission.prompt_ids(prompt_n - 1));
        }
      }
      if (sequence.position == prompt_n && admission.max_tokens() > 0 &&
          admission.committed_ids().empty()) {
        Draw(&sequence, slot);
      }
    }
    for (const v1::ReplaySpan& span : plan.replays()) {
      Sequence& sequence = sequences->at(span.slot());
      const v1::Admission& admission = sequence.admission;
      sequence.position += span.count();
      v1::SlotResult* slot = result.add_slots();
      slot->set_slot(span.slot());
      sequence.tokens = admission.committed_ids_size();
      if (static_cast<int>(sequence.position) ==
          admission.prompt_ids_size() + admission.committed_ids_size()) {
        Draw(&sequence, slot);
      }
    }
    for (const v1::Decode& decode : plan.decodes()) {
      const uint32_t slot = decode.slot();
      Sequence& sequence = sequences->at(slot);
      if (sequence.ended) continue;
      ++sequence.position;
      v1::SlotResult* out = result.add_slots();
      out->set_slot(slot);
      Draw(&sequence, out);
    }
    return result;
  }

  void Draw(Sequence* sequence, v1::SlotResult* out) {
    const v1::Admission& admission = sequence->admission;
    const uint32_t token = admission.prompt_ids(0) + ++sequence->tokens;
    out->add_tokens(token);
    out->add_logprobs(-0.5f);
    const auto& stops = admission.stop_ids();
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      out->set_finish(v1::FINISH_REASON_STOP);
    } else if (sequence->tokens == admission.max_tokens() ||
               sequence->position == context_positions_) {
      out->set_finish(v1::FINISH_REASON_LENGTH);
    }
    sequence->ended = out->finish() != v1::FINISH_REASON_UNSPECIFIED;
  }

  const int rank_;
  FakeHost host_{this};
  std::string address_;
  std::atomic<bool> dead_{false};
  std::atomic<uint32_t> context_positions_{0};
  mutable Mutex mu_;
  Behaviour behaviour_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::LoadRequest> loads_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> callers_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ConnectRequest> connects_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::Admission> admissions_ ABSL_GUARDED_BY(mu_);
  uint64_t expert_tokens_ ABSL_GUARDED_BY(mu_);
  std::thread killer_;
  std::unique_ptr<grpc::Server> server_;
};

// A gate that is closed until Open. Waits are bounded, so a failing test ends.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  bool Wait(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    MutexLock lock(&mu_);
    while (!open_) {
      if (!changed_.WaitUntil(&mu_, end)) return open_;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FAKE_WORKER_H_
