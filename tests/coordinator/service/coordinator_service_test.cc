// SPDX-License-Identifier: Apache-2.0
// The services over real gRPC, with fake workers and the tokenizer of a real
// checkpoint.
#include "coordinator/service/coordinator_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/scheduling/score_windows.h"
#include "coordinator/service/coordinator_server.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "protos/cluster.grpc.pb.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_worker.h"

namespace ringfleet::coordinator {
namespace {

using cluster::Deadline;
using ringfleet::testing::FakeWorker;
using ringfleet::testing::Gate;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kModel[] = RINGFLEET_SOURCE_DIR "/tests/models/tiny-v3";
constexpr absl::Duration kServiceLimit = absl::Seconds(30);

std::chrono::system_clock::time_point In(absl::Duration duration) {
  return std::chrono::system_clock::now() +
         absl::ToChronoMilliseconds(duration);
}

class CoordinatorServiceTest : public ::testing::Test {
 protected:
  // Starts the coordinator; workers follow with Join.
  void Start(int world_size = 1, bool without_mtp = false) {
    CoordinatorOptions options;
    options.fleet.name = "test";
    options.fleet.settings.set_model(kModel);
    options.fleet.mesh.tensor = world_size;
    options.fleet.lease = absl::Hours(1);
    options.fleet.settings.set_parallel(2);
    options.fleet.settings.set_without_mtp(without_mtp);
    auto server = CoordinatorServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel =
        testing::ConnectedChannel(absl::StrCat("127.0.0.1:", server_->port()));
    coordinator_ = v1::Coordinator::NewStub(channel);
    membership_ = v1::Membership::NewStub(channel);
  }

  void Join(int rank, FakeWorker::Behaviour behaviour = {}) {
    workers_.push_back(std::make_unique<FakeWorker>(rank, behaviour));
    grpc::ClientContext context;
    v1::RegisterResponse response;
    const grpc::Status status = membership_->Register(
        &context, workers_.back()->Registration(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    grpc::ClientContext beat_context;
    v1::HeartbeatRequest beat;
    beat.set_member_id(response.member_id());
    v1::HeartbeatResponse ignored;
    EXPECT_TRUE(membership_->Heartbeat(&beat_context, beat, &ignored).ok());
  }

  void StartReady(FakeWorker::Behaviour behaviour = {}) {
    Start();
    Join(0, behaviour);
    const absl::Status status =
        server_->WaitReady(Deadline::After(kServiceLimit));
    ASSERT_TRUE(status.ok()) << status;
  }

  static v1::GenerateRequest Request(const std::vector<uint32_t>& ids,
                                     int64_t max_tokens) {
    v1::GenerateRequest request;
    request.mutable_prompt()->mutable_ids()->mutable_ids()->Add(ids.begin(),
                                                                ids.end());
    request.set_max_tokens(max_tokens);
    return request;
  }

  struct Generated {
    v1::GenerateEvent::Accepted accepted;
    std::vector<uint32_t> ids;
    std::string text;
    v1::GenerateEvent::Finished finished;
    grpc::Status status;
  };

  Generated Generate(const v1::GenerateRequest& request,
                     absl::Duration limit = kServiceLimit) {
    grpc::ClientContext context;
    context.set_deadline(In(limit));
    const auto reader = coordinator_->Generate(&context, request);
    Generated out;
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
      if (event.has_accepted()) out.accepted = event.accepted();
      if (event.has_finished()) out.finished = event.finished();
      if (event.has_token()) {
        out.ids.push_back(event.token().id());
        out.text += event.token().text();
      }
    }
    out.text += out.finished.text();
    out.status = reader->Finish();
    return out;
  }

  grpc::Status Score(const v1::ScoreRequest& request,
                     v1::ScoreEvent::Result* result, int* progress = nullptr,
                     int* parts = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(In(kServiceLimit));
    const auto reader = coordinator_->Score(&context, request);
    v1::ScoreEvent event;
    while (reader->Read(&event)) {
      if (event.has_progress() && progress != nullptr) ++*progress;
      if (event.has_result()) result->MergeFrom(event.result());
      if (event.has_result() && parts != nullptr) ++*parts;
    }
    return reader->Finish();
  }

  v1::ListJobsResponse ListJobs(const v1::ListJobsRequest& request = {}) {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    EXPECT_TRUE(coordinator_->ListJobs(&context, request, &response).ok());
    return response;
  }

  // Nothing: there is no such job.
  std::optional<v1::GetJobResponse> GetJob(const std::string& id) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_id(id);
    v1::GetJobResponse response;
    const grpc::Status status =
        coordinator_->GetJob(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return std::nullopt;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  grpc::Status CancelJob(const std::string& id) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    v1::CancelJobResponse response;
    return coordinator_->CancelJob(&context, request, &response);
  }

  // Threads of this process.
  static int CountThreads() {
    return static_cast<int>(std::distance(
        std::filesystem::directory_iterator("/proc/self/task"), {}));
  }

  // Watches until `condition` holds; false when the stream or time ends first.
  bool WatchUntil(
      const std::function<bool(const v1::ClusterState&)>& condition) {
    grpc::ClientContext context;
    context.set_deadline(In(kServiceLimit));
    const auto reader = membership_->Watch(&context, v1::WatchRequest());
    v1::ClusterState state;
    bool found = false;
    while (!found && reader->Read(&state)) found = condition(state);
    context.TryCancel();
    while (reader->Read(&state)) {
    }
    reader->Finish();
    return found;
  }

  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> coordinator_;
  std::unique_ptr<v1::Membership::Stub> membership_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;

  void TearDown() override {
    if (server_ != nullptr) server_->Shutdown();
  }
};

TEST_F(CoordinatorServiceTest, StreamsTokensAndTheirText) {
  StartReady();
  const auto tokenizer = Tokenizer::Load(kModel);
  ASSERT_TRUE(tokenizer.ok());
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text("def f(x):");
  request.set_max_tokens(20);
  request.set_ignore_eos(true);
  const Generated out = Generate(request);
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  const auto prompt = (*tokenizer)->EncodePrompt("def f(x):");
  EXPECT_EQ(std::vector<uint32_t>(out.accepted.prompt_ids().begin(),
                                  out.accepted.prompt_ids().end()),
            *prompt);
  EXPECT_FALSE(out.accepted.id().empty());
  EXPECT_EQ(out.ids.size(), 20u);
  EXPECT_EQ(out.text, (*tokenizer)->Decode(out.ids, false));
  EXPECT_EQ(out.finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(out.finished.timings().prompt_n(), prompt->size());
  EXPECT_EQ(out.finished.timings().predicted_n(), 20u);
  EXPECT_GT(out.finished.timings().load_ms(), 0);
  EXPECT_GT(out.finished.timings().prompt_ms(), 0);
}

TEST_F(CoordinatorServiceTest, SamplingComesFromTheModelUnlessAskedFor) {
  StartReady();
  // The checkpoint's generation_config.json: temperature 0.6, top_p 0.95.
  Generated out = Generate(Request({5}, 1));
  EXPECT_FLOAT_EQ(out.accepted.sampling().temperature(), 0.6f);
  EXPECT_FLOAT_EQ(out.accepted.sampling().top_p(), 0.95f);
  v1::GenerateRequest request = Request({5}, 1);
  request.set_temperature(0);
  request.set_top_k(7);
  request.set_seed(42);
  out = Generate(request);
  EXPECT_EQ(out.accepted.sampling().temperature(), 0);
  EXPECT_EQ(out.accepted.sampling().top_k(), 7u);
  EXPECT_EQ(out.accepted.sampling().seed(), 42u);
}

TEST_F(CoordinatorServiceTest, StopsAtTheModelsEndTokenWithoutItsText) {
  StartReady();
  // The end token is 1: the first token after 0.
  Generated out = Generate(Request({0}, 10));
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_THAT(out.ids, ElementsAre(1));
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(out.finished.reason(), v1::FINISH_REASON_STOP);
  v1::GenerateRequest request = Request({0}, 3);
  request.set_ignore_eos(true);
  out = Generate(request);
  EXPECT_THAT(out.ids, ElementsAre(1, 2, 3));
}

TEST_F(CoordinatorServiceTest, GeneratesToTheEndOfTheContext) {
  FakeWorker::Behaviour behaviour;
  behaviour.context = 8;
  StartReady(behaviour);
  EXPECT_EQ(Generate(Request({50, 50, 50}, -1)).ids.size(), 6u);
  EXPECT_EQ(Generate(Request(std::vector<uint32_t>(8, 50), -1)).ids.size(), 1u);
  const Generated out = Generate(Request(std::vector<uint32_t>(9, 50), 1));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(out.status.error_message(),
            "prompt: 9 tokens, want at most 8 (the context)");
}

TEST_F(CoordinatorServiceTest, BadRequestsNameTheValue) {
  StartReady();
  const auto message = [this](const v1::GenerateRequest& request) {
    const Generated out = Generate(request);
    EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return out.status.error_message();
  };
  EXPECT_EQ(message(Request({}, 1)), "prompt: empty, want at least one token");
  // The longest token of tiny-v3 has 32 bytes.
  v1::GenerateRequest text;
  text.mutable_prompt()->set_text(std::string(1 << 20, 'a'));
  EXPECT_THAT(message(text),
              HasSubstr("prompt: 1048576 bytes of text, want at most "));
  EXPECT_THAT(message(Request({1, 2, 4000000000}, 1)),
              HasSubstr("prompt: id 4000000000 at index 2, want less than "));
  v1::GenerateRequest request = Request({5}, -2);
  EXPECT_EQ(message(request),
            "sampling: max_tokens -2, want -1 (no limit) or more");
  request = Request({5}, 1);
  request.set_temperature(std::nanf(""));
  EXPECT_EQ(message(request), "sampling: temperature nan, want 0 or more");
  request = Request({5}, 1);
  request.set_top_p(0);
  EXPECT_EQ(message(request),
            "sampling: top_p 0, want more than 0 and at most 1");
  request = Request({5}, 1);
  request.set_min_p(1.5);
  EXPECT_EQ(message(request), "sampling: min_p 1.5, want 0 to 1");
}

TEST_F(CoordinatorServiceTest, MaskUnusedBoundsTheVocabulary) {
  StartReady();
  v1::GenerateRequest request = Request({5}, 1);
  request.set_mask_unused(true);
  ASSERT_TRUE(Generate(request).status.ok());
  const auto tokenizer = Tokenizer::Load(kModel);
  EXPECT_EQ(workers_[0]->admissions()[0].usable_vocab(),
            (*tokenizer)->id_limit());
}

TEST_F(CoordinatorServiceTest, ACallerThatLeavesCancelsItsJobUnlessDetached) {
  for (const bool detach : {false, true}) {
    workers_.clear();
    const auto hold = std::make_shared<Gate>();
    const auto reached = std::make_shared<Gate>();
    FakeWorker::Behaviour behaviour;
    behaviour.on_step = [hold, reached](const v1::StepPlan& plan,
                                        v1::StepResult*) {
      if (plan.step() == 2) {
        reached->Open();
        hold->Wait();
      }
      return absl::OkStatus();
    };
    StartReady(behaviour);
    v1::GenerateRequest request = Request({50}, 30);
    request.set_detach(detach);
    grpc::ClientContext context;
    const auto reader = coordinator_->Generate(&context, request);
    v1::GenerateEvent event;
    ASSERT_TRUE(reader->Read(&event));
    const std::string id = event.accepted().id();
    ASSERT_TRUE(reached->Wait());
    context.TryCancel();
    while (reader->Read(&event)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    if (detach) {
      // Still there: only CancelJob or its own end ends it.
      EXPECT_EQ(server_->state().requests_running(), 1u);
      const v1::ListJobsResponse jobs = ListJobs();
      ASSERT_EQ(jobs.jobs_size(), 1);
      EXPECT_EQ(jobs.jobs(0).id(), id);
      EXPECT_EQ(jobs.jobs(0).state(), v1::JOB_STATE_RUNNING);
      EXPECT_TRUE(CancelJob(id).ok());
      EXPECT_EQ(GetJob(id)->job().state(), v1::JOB_STATE_CANCELLED);
      EXPECT_TRUE(CancelJob(id).ok());  // Drops the result.
      EXPECT_EQ(CancelJob(id).error_code(), grpc::StatusCode::NOT_FOUND);
      EXPECT_EQ(ListJobs().jobs_size(), 0);
    } else {
      EXPECT_TRUE(WatchUntil([](const v1::ClusterState& state) {
        return state.requests_running() == 0;
      }));
    }
    hold->Open();
    server_->Shutdown();
    server_.reset();
  }
}

TEST_F(CoordinatorServiceTest, APageOfJobsGoesOnBehindTheOneBefore) {
  StartReady({});
  v1::GenerateRequest request = Request({50}, 1);
  request.set_detach(true);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Generate(request).status.ok());
  std::vector<std::string> ids;
  const v1::ListJobsResponse all = ListJobs();
  for (const v1::JobInfo& job : all.jobs()) ids.push_back(job.id());
  ASSERT_EQ(ids.size(), 3u);
  v1::ListJobsRequest page;
  page.set_page_size(1);
  v1::ListJobsResponse response = ListJobs(page);
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).id(), ids[0]);
  EXPECT_TRUE(CancelJob(ids[0]).ok());  // Drops the result.
  page.set_page_token(response.next_page_token());
  response = ListJobs(page);
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).id(), ids[1]);
  page.set_page_token(response.next_page_token());
  response = ListJobs(page);
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).id(), ids[2]);
  EXPECT_EQ(response.next_page_token(), "");
}

TEST_F(CoordinatorServiceTest, ADetachedJobsResultIsKeptAndCanBeWatched) {
  StartReady({});
  v1::GenerateRequest request = Request({50}, 4);
  request.set_detach(true);
  const Generated first = Generate(request);
  ASSERT_TRUE(first.status.ok());
  // Forgotten soon after its end.
  EXPECT_TRUE(Generate(Request({50}, 4)).status.ok());
  const Deadline deadline = Deadline::After(kServiceLimit);
  while (ListJobs().jobs_size() > 1 && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(ListJobs().jobs_size(), 1);
  const std::string id = ListJobs().jobs(0).id();
  const auto job = GetJob(id);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->job().state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job->job().predicted_n(), 4u);
  EXPECT_GE(job->job().ended_unix_ms(), job->job().created_unix_ms());
  EXPECT_THAT(job->ids(), ElementsAre(51, 52, 53, 54));
  EXPECT_EQ(job->text(), first.text);
  EXPECT_EQ(job->reason(), v1::FINISH_REASON_LENGTH);

  grpc::ClientContext context;
  v1::WatchJobRequest watch;
  watch.set_id(id);
  const auto reader = coordinator_->WatchJob(&context, watch);
  v1::GenerateEvent event;
  std::vector<uint32_t> ids;
  bool finished = false;
  while (reader->Read(&event)) {
    if (event.has_token()) ids.push_back(event.token().id());
    finished |= event.has_finished();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(finished);
  EXPECT_THAT(ids, ElementsAre(51, 52, 53, 54));
  EXPECT_FALSE(GetJob("none").has_value());
}

TEST_F(CoordinatorServiceTest, AStopStringEndsAJobWhoeverWatches) {
  StartReady({});
  const auto tokenizer = Tokenizer::Load(kModel);
  ASSERT_TRUE(tokenizer.ok());
  const auto text = [&](std::vector<uint32_t> ids) {
    return (*tokenizer)->Decode(ids, false);
  };
  // More tokens than the context has room for: only a stop ends it so early.
  v1::GenerateRequest request = Request({50}, 40);
  request.set_ignore_eos(true);
  request.add_stop("never");
  request.add_stop(text({53, 54}));
  for (const bool keeps : {false, true}) {
    request.set_include_stop_str_in_output(keeps);
    const Generated out = Generate(request);
    ASSERT_TRUE(out.status.ok()) << out.status.error_message();
    EXPECT_THAT(out.ids, ElementsAre(51, 52, 53, 54));
    EXPECT_EQ(out.text, keeps ? text({51, 52, 53, 54}) : text({51, 52}));
    EXPECT_EQ(out.finished.reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(out.finished.timings().prompt_n(), 1u);
    EXPECT_EQ(out.finished.timings().predicted_n(), 4u);
  }
  request.set_include_stop_str_in_output(false);

  // Nobody reads the events of a detached job.
  request.set_detach(true);
  grpc::ClientContext context;
  context.set_deadline(In(kServiceLimit));
  const auto reader = coordinator_->Generate(&context, request);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const std::string id = event.accepted().id();
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  reader->Finish();
  const Deadline deadline = Deadline::After(kServiceLimit);
  while (GetJob(id)->job().state() != v1::JOB_STATE_COMPLETED &&
         !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const auto job = GetJob(id);
  EXPECT_EQ(job->job().state(), v1::JOB_STATE_COMPLETED);
  EXPECT_EQ(job->reason(), v1::FINISH_REASON_STOP);
  EXPECT_THAT(job->ids(), ElementsAre(51, 52, 53, 54));
  EXPECT_EQ(job->text(), text({51, 52}));
  // Both slots are free.
  EXPECT_TRUE(WatchUntil([](const v1::ClusterState& state) {
    return state.requests_running() == 0;
  }));

  request.add_stop("");
  EXPECT_EQ(Generate(request).status.error_message(),
            "stop: a string of 0 bytes, want 1 to 256");
}

TEST_F(CoordinatorServiceTest, AConversationIsRendered) {
  StartReady({});
  const auto tokenizer = Tokenizer::Load(kModel);
  ASSERT_TRUE(tokenizer.ok());
  v1::GenerateRequest request;
  request.set_max_tokens(1);
  v1::Conversation* const conversation =
      request.mutable_prompt()->mutable_conversation();
  const auto add = [&](const char* role, const char* content) {
    v1::Conversation::Message* const message = conversation->add_messages();
    message->set_role(role);
    message->set_content(content);
  };
  const auto ids = [&](const std::string& text) {
    return *(*tokenizer)->Encode((*tokenizer)->bos_token() + text);
  };
  const auto prompt_ids = [&](const Generated& out) {
    EXPECT_TRUE(out.status.ok()) << out.status.error_message();
    return std::vector<uint32_t>(out.accepted.prompt_ids().begin(),
                                 out.accepted.prompt_ids().end());
  };
  add("developer", "S");
  add("user", "a");
  EXPECT_EQ(prompt_ids(Generate(request)), ids("S<｜User｜>a<｜Assistant｜>"));
  add("assistant", "<think>b");
  conversation->set_continue_final_message(true);
  EXPECT_EQ(prompt_ids(Generate(request)),
            ids("S<｜User｜>a<｜Assistant｜><think>b"));
  // The answer goes on with the reasoning: no text is told.
  request.set_max_tokens(5);
  EXPECT_EQ(Generate(request).text, "");
  conversation->set_continue_final_message(false);
  conversation->set_add_generation_prompt(false);
  EXPECT_EQ(prompt_ids(Generate(request)),
            ids("S<｜User｜>a<｜Assistant｜><think>b<｜end▁of▁sentence｜>"));

  v1::ScoreRequest score;
  *score.mutable_prompt() = request.prompt();
  v1::ScoreEvent::Result result;
  EXPECT_TRUE(Score(score, &result).ok());

  conversation->set_template_kwargs("[1]");
  EXPECT_THAT(Generate(request).status.error_message(),
              HasSubstr("template_kwargs"));
  conversation->set_template_kwargs("{\"messages\": []}");
  EXPECT_THAT(Generate(request).status.error_message(),
              HasSubstr("conversation: chat_template_kwargs: sets messages"));
  conversation->clear_template_kwargs();
  add("nobody", "x");
  const grpc::Status status = Generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              HasSubstr("conversation: messages[3].role: want system"));
}

TEST_F(CoordinatorServiceTest, ATimeoutEndsAJob) {
  const auto hold = std::make_shared<Gate>();
  FakeWorker::Behaviour behaviour;
  behaviour.on_step = [hold](const v1::StepPlan&, v1::StepResult*) {
    hold->Wait();
    return absl::OkStatus();
  };
  StartReady(behaviour);
  v1::GenerateRequest request = Request({50}, 4);
  request.set_timeout_ms(50);
  EXPECT_EQ(Generate(request).status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  hold->Open();
}

// A caller may leave at any moment of a delivery.
TEST_F(CoordinatorServiceTest, CallersThatLeaveAmidTokensStopNobody) {
  StartReady({});
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      for (int i = 0; i < 40; ++i) {
        grpc::ClientContext context;
        const auto reader = coordinator_->Generate(&context, Request({50}, 40));
        v1::GenerateEvent event;
        const int events = (7 * i + caller) % 11;
        for (int k = 0; k < events && reader->Read(&event); ++k) {
        }
        context.TryCancel();
        while (reader->Read(&event)) {
        }
        reader->Finish();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(Generate(Request({50}, 4)).status.ok());
  EXPECT_TRUE(WatchUntil([](const v1::ClusterState& state) {
    return state.requests_running() + state.requests_waiting() == 0;
  }));
  // gRPC ends a call soon after its caller has seen the end.
  const Deadline deadline = Deadline::After(kServiceLimit);
  while (ListJobs().jobs_size() > 0 && !deadline.Expired()) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(ListJobs().jobs_size(), 0);
}

TEST_F(CoordinatorServiceTest, ManyWatchersHoldNoThread) {
  const auto hold = std::make_shared<Gate>();
  FakeWorker::Behaviour behaviour;
  behaviour.on_step = [hold](const v1::StepPlan&, v1::StepResult*) {
    hold->Wait();
    return absl::OkStatus();
  };
  StartReady(behaviour);
  const int before = CountThreads();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateEvent>>> readers;
  v1::GenerateEvent event;
  for (int i = 0; i < 200; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(
        coordinator_->Generate(contexts.back().get(), Request({50}, 2)));
    ASSERT_TRUE(readers.back()->Read(&event));
  }
  EXPECT_LE(CountThreads(), before + 20);
  hold->Open();
  for (const auto& reader : readers) {
    int tokens = 0;
    while (reader->Read(&event)) tokens += event.has_token() ? 1 : 0;
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(tokens, 2);
  }
}

TEST_F(CoordinatorServiceTest, WaitsForTheFleetWithinTheDeadline) {
  Start(2);
  Join(1);
  Generated out = Generate(Request({50}, 2), absl::Milliseconds(300));
  EXPECT_THAT(out.status.error_code(),
              ::testing::AnyOf(grpc::StatusCode::UNAVAILABLE,
                               grpc::StatusCode::DEADLINE_EXCEEDED));
  std::thread waiting([this, &out] { out = Generate(Request({50}, 2)); });
  Join(0);
  waiting.join();
  EXPECT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_THAT(out.ids, ElementsAre(51, 52));
}

TEST_F(CoordinatorServiceTest, AResultOfManyTokensComesInParts) {
  FakeWorker::Behaviour behaviour;
  behaviour.context = static_cast<int>(kScorePartIds) + 100;
  StartReady(behaviour);
  std::vector<uint32_t> ids(kScorePartIds + 20);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<uint32_t>(100 + i % 1900);  // Of 2048.
  }
  v1::ScoreRequest request;
  request.mutable_prompt()->mutable_ids()->mutable_ids()->Add(ids.begin(),
                                                              ids.end());
  request.mutable_options()->set_top(1);
  v1::ScoreEvent::Result result;
  int parts = 0;
  const grpc::Status status = Score(request, &result, nullptr, &parts);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(parts, 2);
  EXPECT_THAT(result.ids(), ::testing::ElementsAreArray(ids));
  ASSERT_EQ(result.score().logprobs_size(), static_cast<int>(ids.size() - 1));
  for (int i = 0; i < result.score().logprobs_size(); ++i) {
    ASSERT_EQ(result.score().logprobs(i), -static_cast<float>(ids[i + 1]));
  }
  EXPECT_EQ(result.score().top_ids_size(), 1);
}

TEST_F(CoordinatorServiceTest, LongTextsAreScoredInWindows) {
  FakeWorker::Behaviour behaviour;
  behaviour.context = 8;
  StartReady(behaviour);
  for (const uint32_t n : {1, 2, 8, 9, 15, 16, 40}) {
    std::vector<uint32_t> ids(n);
    std::iota(ids.begin(), ids.end(), 100);
    v1::ScoreRequest request;
    request.mutable_prompt()->mutable_ids()->mutable_ids()->Add(ids.begin(),
                                                                ids.end());
    request.mutable_options()->set_top(1);
    v1::ScoreEvent::Result result;
    int progress = 0;
    const grpc::Status status = Score(request, &result, &progress);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(result.score().logprobs_size(), static_cast<int>(n - 1));
    for (uint32_t i = 0; i + 1 < n; ++i) {
      EXPECT_EQ(result.score().logprobs(i), -static_cast<float>(101 + i));
    }
    EXPECT_THAT(result.score().top_ids(), ElementsAre(99 + n));
    EXPECT_EQ(result.score().compared(), n - 1);
    // A window adds 7 probabilities. A slow reader misses some.
    EXPECT_LE(progress, static_cast<int>((n - 1 + 6) / 7));
  }
  v1::ScoreRequest request;
  for (int i = 0; i < 9; ++i)
    request.mutable_prompt()->mutable_ids()->add_ids(i);
  request.mutable_options()->set_hidden(true);
  v1::ScoreEvent::Result result;
  EXPECT_EQ(Score(request, &result).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_options()->set_hidden(false);
  request.mutable_options()->set_reference(true);
  EXPECT_EQ(Score(request, &result).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(CoordinatorServiceTest, MtpIsRefusedWhereNoWorkerHoldsItsLayers) {
  Start(1, /*without_mtp=*/true);
  v1::ScoreRequest request;
  request.mutable_prompt()->mutable_ids()->add_ids(1);
  request.mutable_options()->set_mtp(true);
  v1::ScoreEvent::Result result;
  const grpc::Status status = Score(request, &result);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("mtp: the workers hold no multi-token prediction "
                        "layers, want `without_mtp: false`"));
}

TEST_F(CoordinatorServiceTest, TokenizesAndDetokenizes) {
  Start();  // Needs no worker.
  v1::TokenizeRequest request;
  request.set_text("return x");
  request.set_bos(true);
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(coordinator_->Tokenize(&context, request, &tokens).ok());
  ASSERT_EQ(tokens.ids_size(), tokens.pieces_size());
  EXPECT_EQ(tokens.ids(0), 0u);
  v1::DetokenizeRequest back;
  *back.mutable_ids() = tokens.ids();
  back.add_ids((1u << 31) - 1);  // Has no token.
  grpc::ClientContext back_context;
  v1::DetokenizeResponse text;
  ASSERT_TRUE(coordinator_->Detokenize(&back_context, back, &text).ok());
  EXPECT_EQ(text.text(), "return x");
  back.add_ids(1u << 31);
  grpc::ClientContext bad_context;
  EXPECT_EQ(coordinator_->Detokenize(&bad_context, back, &text).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CoordinatorServiceTest, DescribesClusterAndExperts) {
  StartReady();
  grpc::ClientContext context;
  v1::ClusterState state;
  ASSERT_TRUE(
      coordinator_
          ->DescribeCluster(&context, v1::DescribeClusterRequest(), &state)
          .ok());
  EXPECT_EQ(state.state(), v1::FLEET_STATE_READY);
  EXPECT_EQ(state.model(), kModel);
  EXPECT_EQ(state.world_size(), 1u);
  grpc::ClientContext experts_context;
  v1::DescribeExpertsRequest request;
  v1::DescribeExpertsResponse experts;
  ASSERT_TRUE(
      coordinator_->DescribeExperts(&experts_context, request, &experts).ok());
  EXPECT_EQ(experts.layers(0).layer(), 1u);
}

TEST_F(CoordinatorServiceTest, WatchShowsTheFleetForming) {
  Start();
  std::thread joins([this] { Join(0); });
  bool waited = false;
  EXPECT_TRUE(WatchUntil([&waited](const v1::ClusterState& state) {
    waited |= state.state() == v1::FLEET_STATE_WAITING;
    return state.state() == v1::FLEET_STATE_READY;
  }));
  joins.join();
}

TEST_F(CoordinatorServiceTest, ShutdownEndsCallsWithAReason) {
  const auto hold = std::make_shared<Gate>();
  const auto reached = std::make_shared<Gate>();
  FakeWorker::Behaviour behaviour;
  behaviour.on_step = [hold, reached](const v1::StepPlan&, v1::StepResult*) {
    reached->Open();
    hold->Wait();
    return absl::OkStatus();
  };
  StartReady(behaviour);
  Generated out;
  std::thread call([this, &out] { out = Generate(Request({50}, 2)); });
  ASSERT_TRUE(reached->Wait());
  server_->Shutdown();
  call.join();
  hold->Open();
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(out.status.error_message(), "the coordinator is stopping");
}

TEST(CoordinatorServerTest, RefusesWhatCannotRun) {
  CoordinatorOptions options;
  options.fleet.settings.set_model("/nonexistent");
  EXPECT_EQ(CoordinatorServer::Start(options).status().code(),
            absl::StatusCode::kNotFound);
  options.fleet.settings.set_model(kModel);
  options.fleet.mesh.tensor = 0;
  EXPECT_EQ(CoordinatorServer::Start(options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.fleet.mesh.tensor = 1;
  options.fleet.settings.set_context(1u << 30);
  EXPECT_EQ(CoordinatorServer::Start(options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.fleet.settings.set_context(0);
  options.listen = {"0.0.0.0", 0};
  EXPECT_EQ(CoordinatorServer::Start(options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ringfleet::coordinator
