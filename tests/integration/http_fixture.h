// SPDX-License-Identifier: Apache-2.0
// A fleet on this machine with an HTTP port.
#ifndef RINGFLEET_TESTS_INTEGRATION_HTTP_FIXTURE_H_
#define RINGFLEET_TESTS_INTEGRATION_HTTP_FIXTURE_H_

#include <memory>
#include <string>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/http_client.h"

namespace ringfleet::integration {

inline constexpr char kCompletions[] = "/v1/completions";
inline constexpr char kChat[] = "/v1/chat/completions";

class HttpFleet : public HandFleet {
 protected:
  // Starts `ringfleet serve` in float32 on a free port.
  void Serve(int parallel = 2, Arguments more = {});
  // Ends the server in order, as SIGTERM does.
  void EndServe();

  testing::HttpReply Post(const std::string& path, const json& body);
  // Returns the value of a gauge or counter; -1 if there is none.
  int Metric(const std::string& name);
  // Waits until no job runs or waits.
  void ExpectNoJobs();

  std::unique_ptr<Process> serve_;
  int http_port_ = 0;
};

}  // namespace ringfleet::integration

#endif  // RINGFLEET_TESTS_INTEGRATION_HTTP_FIXTURE_H_
