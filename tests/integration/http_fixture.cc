// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/http_fixture.h"

#include <signal.h>

#include <utility>

namespace ringfleet::integration {

using testing::HttpClient;

void HttpFleet::Serve(int parallel, Arguments more) {
  Arguments arguments = {"serve",  "--model",    Model(),
                         "--port", "0",          "--dtype",
                         "f32",    "--parallel", std::to_string(parallel)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  serve_ = StartCli(std::move(arguments));
  const std::string line = "listening on http://127.0.0.1:";
  ASSERT_TRUE(WaitUntil(30, [&] {
    return serve_->output().ends_with("\n") || !serve_->Running();
  })) << serve_->errors();
  ASSERT_TRUE(serve_->output().starts_with(line)) << serve_->errors();
  http_port_ = std::stoi(serve_->output().substr(line.size()));
}

void HttpFleet::EndServe() {
  serve_->Signal(SIGTERM);
  EXPECT_EQ(serve_->Wait(30), 0) << serve_->errors();
}

testing::HttpReply HttpFleet::Post(const std::string& path, const json& body) {
  return HttpClient(http_port_).Call("POST", path, body.dump());
}

int HttpFleet::Metric(const std::string& name) {
  const std::string text = HttpClient(http_port_).Call("GET", "/metrics").body;
  const size_t at = text.find("\n" + name + "{");
  return at == std::string::npos
             ? -1
             : std::stoi(text.substr(text.find("} ", at) + 2));
}

void HttpFleet::ExpectNoJobs() {
  EXPECT_TRUE(WaitUntil(30, [this] {
    return Metric("vllm:num_requests_running") == 0 &&
           Metric("vllm:num_requests_waiting") == 0;
  }));
}

}  // namespace ringfleet::integration
