// SPDX-License-Identifier: Apache-2.0
// The endpoints over loopback, with jobs that the test plays and the tokenizer
// of a bundled model.
#ifndef RINGFLEET_TESTS_COORDINATOR_HTTP_API_FIXTURE_H_
#define RINGFLEET_TESTS_COORDINATOR_HTTP_API_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/http/http_face.h"
#include "tests/coordinator/http/fake_jobs.h"
#include "tests/testing/http_client.h"

namespace ringfleet::coordinator {

inline constexpr char kTinyModel[] = RINGFLEET_TEST_MODELS "/tiny-v3";
inline constexpr char kCompletions[] = "/v1/completions";
inline constexpr char kChat[] = "/v1/chat/completions";

class ApiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = ServedModel::Load(kTinyModel);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = model->release();
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  void Start(HttpOptions options = {}) {
    options.listen.port = 0;
    auto face = HttpFace::Start(options, model_, kTinyModel, &jobs_);
    ASSERT_TRUE(face.ok()) << face.status();
    face_ = *std::move(face);
  }

  testing::HttpReply Post(absl::string_view path, const std::string& body) {
    return testing::HttpClient(face_->port()).Call("POST", path, body);
  }
  testing::HttpReply Get(absl::string_view path) {
    return testing::HttpClient(face_->port()).Call("GET", path);
  }
  static std::vector<uint32_t> Ids(absl::string_view text) {
    return *(*model_->tokenizer())->Encode(text);
  }
  // Jobs answer with the tokens of a text.
  void Answer(absl::string_view text,
              v1::FinishReason reason = v1::FINISH_REASON_LENGTH) {
    jobs_.AnswerWith(Ids(text), reason);
  }
  // Returns the joined text of a stream's choice.
  static std::string TextOf(const std::vector<std::string>& events, bool chat,
                            size_t choice = 0) {
    std::string text;
    for (const std::string& event : events) {
      if (event == "[DONE]") break;
      const nlohmann::json parsed = nlohmann::json::parse(event);
      for (const nlohmann::json& part : parsed["choices"]) {
        if (part["index"] != choice) continue;
        if (!chat) {
          text += part["text"].get<std::string>();
        } else if (part["delta"].contains("content") &&
                   part["delta"]["content"].is_string()) {
          text += part["delta"]["content"].get<std::string>();
        }
      }
    }
    return text;
  }

  static inline ServedModel* model_ = nullptr;
  FakeJobs jobs_;
  std::unique_ptr<HttpFace> face_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_TESTS_COORDINATOR_HTTP_API_FIXTURE_H_
