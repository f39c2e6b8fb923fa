// SPDX-License-Identifier: Apache-2.0
// The Worker service over real gRPC, with a bundled model.
#include "worker/service/worker_service.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/model/model_spec.h"
#include "cluster/process/status.h"
#include "cluster/rpc/coordinator_id.h"
#include "cluster/rpc/server.h"
#include "cluster/wire/frame.h"
#include "kernels/attention/latent_cache.h"
#include "kernels/check.h"
#include "tests/testing/connected_channel.h"

namespace ringfleet::worker {
namespace {

// A peer that takes connections and never says a word.
class SilentPeer {
 public:
  SilentPeer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    RF_CHECK(bind(fd_, any, size) == 0 && listen(fd_, 8) == 0 &&
             getsockname(fd_, any, &size) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~SilentPeer() { close(fd_); }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

class WorkerServiceTest : public ::testing::Test {
 protected:
  WorkerServiceTest()
      : endpoint_({.recorder = &flight_.recorder()}),
        service_(&endpoint_, &flight_, /*default_threads=*/1, 0) {
    auto server =
        cluster::DaemonServer::Start({"127.0.0.1", 0}, /*allow_insecure=*/false,
                                     [this](grpc::ServerBuilder& builder) {
                                       endpoint_.Register(builder);
                                       builder.RegisterService(&service_);
                                     });
    RF_CHECK(server.ok());
    server_ = *std::move(server);
    endpoint_.Start();
    address_ = absl::StrCat("127.0.0.1:", server_->port());
    stub_ = v1::Worker::NewStub(testing::ConnectedChannel(address_));
  }
  ~WorkerServiceTest() override {
    service_.Abort(absl::UnavailableError("the test is over"));
    endpoint_.StopLinks();
    server_->Shutdown(absl::ZeroDuration());
    endpoint_.Shutdown();
  }

  static v1::LoadRequest TinyV3(int world_size) {
    v1::LoadRequest request;
    request.set_model_path(RINGFLEET_TEST_MODELS "/tiny-v3");
    request.set_dtype(v1::DTYPE_BF16);
    request.mutable_layout()->mutable_mesh()->set_data(1);
    request.mutable_layout()->mutable_mesh()->set_expert(1);
    request.mutable_layout()->mutable_mesh()->set_tensor(world_size);
    request.set_context(64);
    request.set_slots(1);
    return request;
  }

  grpc::Status Load(const v1::LoadRequest& request,
                    const std::string& coordinator_id = "") {
    grpc::ClientContext context;
    cluster::SetCoordinatorId(coordinator_id, &context);
    const auto reader = stub_->Load(&context, request);
    while (reader->Read(&last_load_)) {
    }
    return reader->Finish();
  }

  template <typename Method, typename Request, typename Response>
  grpc::Status Call(const std::string& coordinator_id, Method method,
                    const Request& request, Response response) {
    grpc::ClientContext context;
    cluster::SetCoordinatorId(coordinator_id, &context);
    return (stub_.get()->*method)(&context, request, &response);
  }

  void Load(int world_size,
            v1::CacheDtype cache_dtype = v1::CACHE_DTYPE_UNSPECIFIED) {
    v1::LoadRequest request = TinyV3(world_size);
    request.set_cache_dtype(cache_dtype);
    const grpc::Status status = Load(request);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // Asks for layer 1 to lose no expert and to get none: the mesh has one
  // coordinate.
  grpc::Status PrepareExperts(uint64_t epoch, uint64_t move, uint32_t layer = 1,
                              uint32_t experts = 16) {
    v1::PrepareExpertsRequest request;
    request.set_epoch(epoch);
    request.set_move(move);
    v1::ExpertLayer* changed = request.mutable_layout()->add_layers();
    changed->set_layer(layer);
    v1::ExpertCoordinate* coordinate = changed->add_coordinates();
    for (uint32_t e = 0; e < experts; ++e) coordinate->add_experts(e);
    grpc::ClientContext context;
    const auto reader = stub_->PrepareExperts(&context, request);
    v1::PrepareExpertsProgress progress;
    while (reader->Read(&progress)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(progress.done(), status.ok());
    return status;
  }

  v1::ConnectRequest Connection(uint64_t epoch) const {
    v1::ConnectRequest request;
    request.set_epoch(epoch);
    request.add_addresses(address_);
    request.set_wire(v1::WIRE_DTYPE_BF16);
    request.set_timeout_ms(600'000);
    request.set_collective_timeout_ms(5000);
    request.set_context(64);
    request.set_cache_blocks(1);
    request.set_ranks_on_host(1);
    return request;
  }

  grpc::Status Connect(const v1::ConnectRequest& request,
                       absl::Duration limit = absl::Seconds(30),
                       uint64_t* cache_bytes = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         absl::ToChronoMilliseconds(limit));
    v1::ConnectResponse response;
    const grpc::Status status = stub_->Connect(&context, request, &response);
    if (cache_bytes != nullptr) *cache_bytes = response.cache_bytes();
    return status;
  }

  FlightLog flight_{""};
  cluster::CollectiveEndpoint endpoint_;
  WorkerService service_;
  std::unique_ptr<cluster::DaemonServer> server_;
  std::string address_;
  std::unique_ptr<v1::Worker::Stub> stub_;
  v1::LoadProgress last_load_;  // The last message of the last Load.
};

TEST_F(WorkerServiceTest, RemembersTheLatestEpochItWasAskedToEnter) {
  ASSERT_NO_FATAL_FAILURE(Load(1));
  EXPECT_EQ(service_.last_epoch(), 0u);
  EXPECT_TRUE(Connect(Connection(7)).ok());
  EXPECT_EQ(service_.last_epoch(), 7u);
  EXPECT_EQ(Connect(Connection(6)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(service_.last_epoch(), 7u);
  EXPECT_EQ(Connect(Connection(cluster::kMaxEpoch + 1)).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(service_.last_epoch(), 7u);
  EXPECT_TRUE(Connect(Connection(8)).ok());
}

TEST_F(WorkerServiceTest, NoMeshIsLargerThanAFleet) {
  v1::LoadRequest request;
  request.set_model_path("synth:tiny");
  request.set_dtype(v1::DTYPE_BF16);
  request.set_context(64);
  request.set_slots(1);
  request.set_prefill_strategy(v1::PREFILL_STRATEGY_WEIGHT_GATHER);
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  for (const auto& [data, expert, tensor] :
       {std::tuple(1u, 1u, 17u), std::tuple(4u, 2u, 4u),
        std::tuple(1024u, 1024u, 1024u), std::tuple(~0u, ~0u, ~0u)}) {
    mesh->set_data(data);
    mesh->set_expert(expert);
    mesh->set_tensor(tensor);
    grpc::ClientContext context;
    const auto reader = stub_->Load(&context, request);
    v1::LoadProgress progress;
    while (reader->Read(&progress)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(),
                ::testing::HasSubstr("want at most 16 ranks"));
  }
}

TEST_F(WorkerServiceTest, AModelMustBeNamed) {
  v1::LoadRequest request;
  request.set_dtype(v1::DTYPE_BF16);
  request.set_context(64);
  request.set_slots(1);
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  mesh->set_data(1);
  mesh->set_expert(1);
  mesh->set_tensor(1);
  grpc::ClientContext context;
  const auto reader = stub_->Load(&context, request);
  v1::LoadProgress progress;
  while (reader->Read(&progress)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "load: model_path is empty");
}

// One block of positions in every layer: those of the model and of its MTP.
TEST_F(WorkerServiceTest, TheCacheTypeDecidesTheSizeOfTheCache) {
  const auto spec = cluster::LoadModelSpec(RINGFLEET_TEST_MODELS "/tiny-v3");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const int layers = spec->num_hidden_layers + spec->num_nextn_predict_layers;
  uint64_t epoch = 1;
  for (const auto& [proto, dtype] :
       {std::pair(v1::CACHE_DTYPE_UNSPECIFIED, kernels::Dtype::kBf16),
        std::pair(v1::CACHE_DTYPE_F32, kernels::Dtype::kF32),
        std::pair(v1::CACHE_DTYPE_BF16, kernels::Dtype::kBf16),
        std::pair(v1::CACHE_DTYPE_INT8, kernels::Dtype::kInt8)}) {
    ASSERT_NO_FATAL_FAILURE(Load(1, proto));
    uint64_t bytes = 0;
    ASSERT_TRUE(Connect(Connection(epoch++), absl::Seconds(30), &bytes).ok());
    const kernels::LatentRowFormat format = {
        dtype, static_cast<size_t>(spec->kv_lora_rank),
        static_cast<size_t>(spec->qk_rope_head_dim)};
    EXPECT_EQ(bytes, layers * kernels::kCacheBlockPositions * format.bytes());
  }
}

TEST_F(WorkerServiceTest, ServesTheLatestFlightRecords) {
  for (const uint64_t sequence : {1, 2, 3}) {
    flight_.recorder().Begin({.epoch = 7, .sequence = sequence, .count = 5});
  }
  grpc::ClientContext context;
  v1::FlightRecordsRequest request;
  request.set_limit(2);
  v1::FlightRecordsResponse response;
  ASSERT_TRUE(stub_->FlightRecords(&context, request, &response).ok());
  ASSERT_EQ(response.records_size(), 2);
  EXPECT_EQ(response.records(0).sequence(), 2u);
  EXPECT_EQ(response.records(1).sequence(), 3u);
  EXPECT_EQ(response.records(1).epoch(), 7u);
  EXPECT_EQ(response.records(1).state(), v1::FlightRecord::STATE_RUNNING);
}

// A run of the connected epoch 7 with a step after each Step().
class ActiveRun {
 public:
  explicit ActiveRun(v1::Worker::Stub& stub,
                     const std::string& coordinator_id = "") {
    cluster::SetCoordinatorId(coordinator_id, &context_);
    stream_ = stub.Run(&context_);
    plan_.set_epoch(7);
    plan_.set_step(1);
    v1::Admission* admission = plan_.add_admissions();
    admission->set_max_tokens(9);
    for (const uint32_t id : {5, 6, 7}) admission->add_prompt_ids(id);
    plan_.add_prefills()->set_count(3);
    plan_.add_grants()->add_blocks(0);
  }
  ~ActiveRun() {
    context_.TryCancel();
    v1::StepResult result;
    while (stream_->Read(&result)) {
    }
    stream_->Finish();
  }

  bool Step() {
    v1::StepResult result;
    if (!stream_->Write(plan_) || !stream_->Read(&result)) return false;
    plan_.Clear();
    plan_.set_epoch(7);
    plan_.set_step(result.step() + 1);
    plan_.add_decodes()->set_slot(0);
    return !result.has_error();
  }

  // Waits for a result without a plan. Returns its error.
  v1::StepError Error() {
    v1::StepResult result;
    return stream_->Read(&result) ? result.error() : v1::StepError();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StepPlan, v1::StepResult>>
      stream_;
  v1::StepPlan plan_;
};

TEST_F(WorkerServiceTest, RefusedCallsEndNoRun) {
  ASSERT_NO_FATAL_FAILURE(Load(1));
  ASSERT_TRUE(Connect(Connection(7)).ok());
  ActiveRun run(*stub_);
  EXPECT_TRUE(run.Step());
  EXPECT_EQ(Load(v1::LoadRequest()).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::LoadRequest load = TinyV3(1);
  load.set_model_path("/no/such/folder");
  EXPECT_EQ(Load(load).error_code(), grpc::StatusCode::NOT_FOUND);
  load = TinyV3(1);
  load.set_context(1 << 30);
  EXPECT_EQ(Load(load).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  load = TinyV3(1);
  load.set_memory_limit_bytes(1);
  EXPECT_EQ(Load(load).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Connect(v1::ConnectRequest()).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Connect(Connection(7)).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::ConnectRequest nowhere = Connection(8);
  nowhere.set_addresses(0, "nowhere");
  EXPECT_EQ(Connect(nowhere).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  const auto other = stub_->Run(&context);
  v1::StepResult result;
  EXPECT_FALSE(other->Read(&result));
  EXPECT_EQ(other->Finish().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(run.Step());
}

TEST_F(WorkerServiceTest, ARunIsToldWhoTakesItOver) {
  ASSERT_NO_FATAL_FAILURE(Load(1));
  ASSERT_TRUE(Connect(Connection(7)).ok());
  ActiveRun run(*stub_);
  EXPECT_TRUE(run.Step());
  std::thread other([&] { EXPECT_TRUE(Connect(Connection(8)).ok()); });
  EXPECT_THAT(run.Error().message(),
              ::testing::MatchesRegex(
                  "a Connect from 127.0.0.1:[0-9]+ took this worker over"));
  other.join();
}

TEST_F(WorkerServiceTest, HeldWeightsAreReportedAndKept) {
  v1::RegisterRequest registration;
  service_.BeginRegistration(&registration);
  EXPECT_FALSE(registration.has_held());
  v1::LoadRequest request = TinyV3(1);
  request.mutable_layout()->mutable_mesh()->set_expert(2);
  // Experts 0 and 31 have changed places.
  v1::ExpertLayer* layer =
      request.mutable_layout()->mutable_experts()->add_layers();
  layer->set_layer(1);
  const int experts =
      cluster::LoadModelSpec(request.model_path())->n_routed_experts;
  for (int at = 0; at < 2; ++at) {
    v1::ExpertCoordinate* coordinate = layer->add_coordinates();
    for (int expert = 0; expert < experts; ++expert) {
      const bool changed = expert == 0 || expert == experts - 1;
      if ((expert < experts / 2) == ((at == 0) != changed)) {
        coordinate->add_experts(expert);
      }
    }
  }
  ASSERT_TRUE(Load(request).ok());
  EXPECT_FALSE(last_load_.kept());
  service_.BeginRegistration(&registration);
  EXPECT_EQ(registration.held().fingerprint(), last_load_.fingerprint());
  EXPECT_EQ(registration.held().request().SerializeAsString(),
            request.SerializeAsString());
  service_.EndRegistration("");

  ASSERT_TRUE(Load(registration.held().request()).ok());
  EXPECT_TRUE(last_load_.kept());
  EXPECT_EQ(last_load_.tensor_bytes_read(), 0u);
  EXPECT_EQ(last_load_.reload_cause(), "");
  request.mutable_layout()->clear_experts();
  ASSERT_TRUE(Load(request).ok());
  EXPECT_FALSE(last_load_.kept());
  EXPECT_EQ(last_load_.reload_cause(), "other experts in layer 1");
  request.set_dtype(v1::DTYPE_INT8);
  ASSERT_TRUE(Load(request).ok());
  EXPECT_EQ(last_load_.reload_cause(), "dtype int8, held bf16");
  request.mutable_layout()->set_rank(1);
  ASSERT_TRUE(Load(request).ok());
  EXPECT_EQ(last_load_.reload_cause(),
            "mesh 1x2x1 rank 1, held mesh 1x2x1 rank 0");
}

TEST_F(WorkerServiceTest, CallsOfAnEarlierCoordinatorAreRefused) {
  const std::string first = cluster::NewCoordinatorId();
  const std::string second = cluster::NewCoordinatorId();
  const auto register_with = [this](const std::string& id) {
    v1::RegisterRequest registration;
    service_.BeginRegistration(&registration);
    service_.EndRegistration(id);
  };
  ASSERT_TRUE(Load(TinyV3(1), first).ok());  // Not registered so far.
  register_with(first);
  ASSERT_TRUE(Load(TinyV3(1), first).ok());
  ASSERT_TRUE(Connect(Connection(7)).ok());
  ActiveRun run(*stub_, first);
  EXPECT_TRUE(run.Step());
  register_with(first);  // A lost lease changes nothing.
  EXPECT_TRUE(run.Step());

  register_with(second);
  const v1::StepError ended = run.Error();
  EXPECT_TRUE(ended.superseded());
  EXPECT_THAT(ended.message(),
              ::testing::HasSubstr("has registered with coordinator " +
                                   second.substr(0, 8)));
  const auto expect_refused = [&](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(status.error_message(),
              "this worker has registered with coordinator " +
                  second.substr(0, 8) + " and refuses calls of coordinator " +
                  first.substr(0, 8));
    EXPECT_TRUE(cluster::IsSuperseded(cluster::FromGrpc(status)));
  };
  expect_refused(Load(TinyV3(1), first));
  expect_refused(Call(first, &v1::Worker::Stub::Connect, Connection(8),
                      v1::ConnectResponse()));
  expect_refused(Call(first, &v1::Worker::Stub::Statistics,
                      v1::StatisticsRequest(), v1::StatisticsResponse()));
  expect_refused(Call(first, &v1::Worker::Stub::FindCheckpoint,
                      v1::FindCheckpointRequest(),
                      v1::FindCheckpointResponse()));
  EXPECT_EQ(service_.last_epoch(), 7u);
  EXPECT_TRUE(Load(TinyV3(1), second).ok());
  EXPECT_TRUE(last_load_.kept());
}

// The coordinator answers, and forms its epoch before the worker has read it.
TEST_F(WorkerServiceTest, ACallWaitsForTheRegistrationThatItFollows) {
  const std::string first = cluster::NewCoordinatorId();
  const std::string second = cluster::NewCoordinatorId();
  v1::RegisterRequest registration;
  service_.BeginRegistration(&registration);
  service_.EndRegistration(first);
  service_.BeginRegistration(&registration);
  std::thread other([&] { EXPECT_TRUE(Load(TinyV3(1), second).ok()); });
  EXPECT_TRUE(Call(first, &v1::Worker::Stub::Statistics,
                   v1::StatisticsRequest(), v1::StatisticsResponse())
                  .ok());
  service_.EndRegistration(second);
  other.join();
}

TEST_F(WorkerServiceTest, TheEndOfARunIsTold) {
  std::atomic<int> ended{0};
  service_.SetOnRunEnd([&ended] { ++ended; });
  ASSERT_NO_FATAL_FAILURE(Load(1));
  ASSERT_TRUE(Connect(Connection(7)).ok());
  {
    ActiveRun run(*stub_);
    EXPECT_TRUE(run.Step());
    EXPECT_EQ(ended, 0);
  }
  ASSERT_TRUE(Connect(Connection(8)).ok());  // Takes over what still runs.
  EXPECT_EQ(ended, 1);
  service_.SetOnRunEnd(nullptr);
}

// One prompt of three tokens, in one step, with a trace around it.
TEST_F(WorkerServiceTest, ATraceHoldsTheStepsOfItsTime) {
  ASSERT_NO_FATAL_FAILURE(Load(1));
  ASSERT_TRUE(Connect(Connection(7)).ok());
  ActiveRun run(*stub_);
  EXPECT_TRUE(run.Step());
  grpc::ClientContext context;
  const auto trace = stub_->Trace(&context);
  v1::TraceRequest request;
  request.set_max_events(2);
  v1::TraceChunk chunk;
  ASSERT_TRUE(trace->Write(request) && trace->Read(&chunk));
  EXPECT_EQ(chunk.events_size(), 0);
  EXPECT_TRUE(run.Step());
  trace->WritesDone();
  ASSERT_TRUE(trace->Read(&chunk));
  EXPECT_TRUE(run.Step());
  ASSERT_EQ(chunk.events_size(), 2);
  EXPECT_GT(chunk.dropped(), 0u);
  EXPECT_EQ(chunk.names(chunk.events(0).name()), "sampling");
  EXPECT_EQ(chunk.names(chunk.events(1).name()), "step");
  EXPECT_EQ(chunk.events(1).step(), 2u);
  EXPECT_FALSE(trace->Read(&chunk));
  EXPECT_TRUE(trace->Finish().ok());
}

TEST_F(WorkerServiceTest, OneTraceAtATimeAndABrokenOneEnds) {
  grpc::ClientContext context;
  const auto trace = stub_->Trace(&context);
  v1::TraceRequest request;
  v1::TraceChunk chunk;
  ASSERT_TRUE(trace->Write(request) && trace->Read(&chunk));
  const auto another = [&](uint32_t max_events) {
    grpc::ClientContext other_context;
    const auto other = stub_->Trace(&other_context);
    v1::TraceRequest other_request;
    other_request.set_max_events(max_events);
    other->Write(other_request);
    other->WritesDone();
    while (other->Read(&chunk)) {
    }
    return other->Finish().error_code();
  };
  EXPECT_EQ(another(0), grpc::StatusCode::FAILED_PRECONDITION);
  context.TryCancel();
  EXPECT_EQ(trace->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const auto limit = cluster::Deadline::After(absl::Seconds(20));
  service_.calls().WaitNone(limit);
  EXPECT_FALSE(limit.Expired()) << "the worker still records";
  EXPECT_EQ(another(~0u), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(another(0), grpc::StatusCode::OK);
}

// A trace that nobody reads has its memory until its caller goes.
TEST_F(WorkerServiceTest, ATraceThatIsBeingSentIsTheOnlyOne) {
  grpc::ClientContext context;
  const auto trace = stub_->Trace(&context);
  v1::TraceRequest request;
  v1::TraceChunk chunk;
  ASSERT_TRUE(trace->Write(request) && trace->Read(&chunk));
  EXPECT_EQ(chunk.events_size(), 0);
  grpc::ClientContext other_context;
  const auto other = stub_->Trace(&other_context);
  request.set_max_events(~0u);
  other->Write(request);
  EXPECT_FALSE(other->Read(&chunk));
  // The first one is looked for before the number of events.
  EXPECT_EQ(other->Finish().error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  trace->WritesDone();
  while (trace->Read(&chunk)) {
  }
  EXPECT_TRUE(trace->Finish().ok());
}

TEST_F(WorkerServiceTest, ExpertsArePreparedForTheConnectedEpoch) {
  EXPECT_EQ(PrepareExperts(7, 1).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_NO_FATAL_FAILURE(Load(1));
  ASSERT_TRUE(Connect(Connection(7)).ok());
  EXPECT_EQ(PrepareExperts(6, 1).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(PrepareExperts(7, 0).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(PrepareExperts(7, 1, /*layer=*/99).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(PrepareExperts(7, 1, /*layer=*/0).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);  // Dense.
  EXPECT_EQ(PrepareExperts(7, 1, 1, /*experts=*/15).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(PrepareExperts(7, 1).ok());
  EXPECT_TRUE(PrepareExperts(7, 2).ok());

  grpc::ClientContext context;
  const auto stream = stub_->Run(&context);
  v1::StepPlan plan;
  plan.set_epoch(7);
  plan.set_step(1);
  plan.set_expert_move(2);
  v1::StepResult result;
  ASSERT_TRUE(stream->Write(plan) && stream->Read(&result));
  EXPECT_FALSE(result.has_error()) << result.error().message();
  // It has been used, and the first one was dropped for it.
  plan.set_step(2);
  plan.set_expert_move(1);
  ASSERT_TRUE(stream->Write(plan) && stream->Read(&result));
  EXPECT_THAT(result.error().message(),
              ::testing::HasSubstr("move 1 is not prepared"));
}

TEST_F(WorkerServiceTest, WritesNoCheckpointWhileAModelIsConnected) {
  const auto synthesize = [this](const std::string& folder) {
    v1::SynthesizeRequest request;
    request.set_model("synth:tiny");
    request.set_folder(folder);
    grpc::ClientContext context;
    const auto reader = stub_->Synthesize(&context, request);
    v1::SynthesizeProgress progress;
    while (reader->Read(&progress)) {
    }
    return reader->Finish().error_code();
  };
  EXPECT_EQ(synthesize("/proc/none"), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_NO_FATAL_FAILURE(Load(1));
  ASSERT_TRUE(Connect(Connection(7)).ok());
  EXPECT_EQ(synthesize("/proc/none"), grpc::StatusCode::FAILED_PRECONDITION);
}

// The worker would wait for its peer for ten minutes.
TEST_F(WorkerServiceTest, ACallerThatGivesUpEndsItsConnect) {
  ASSERT_NO_FATAL_FAILURE(Load(2));
  const SilentPeer peer;
  v1::ConnectRequest request = Connection(7);
  request.add_addresses(peer.address());
  EXPECT_EQ(Connect(request, absl::Milliseconds(200)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  const auto limit = cluster::Deadline::After(absl::Seconds(20));
  service_.calls().WaitNone(limit);
  EXPECT_FALSE(limit.Expired()) << "the worker still waits for the peer";
}

}  // namespace
}  // namespace ringfleet::worker
