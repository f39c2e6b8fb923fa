// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_BATCH_LINE_EXCHANGE_H_
#define RINGFLEET_COORDINATOR_BATCH_LINE_EXCHANGE_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/http/http_exchange.h"

namespace ringfleet::coordinator {

// The request of a batch's line and its response, without a connection. For the
// thread of the answers.
class LineExchange final : public HttpExchange {
 public:
  // `done` gets the response, once.
  LineExchange(HttpRequest request, std::function<void(HttpResponse)> done)
      : request_(std::move(request)), done_(std::move(done)) {}

  // Ends the answer, whose response then never comes.
  void Leave() {
    done_ = nullptr;
    if (const auto listener = listener_.lock()) listener->OnGone();
  }

  const HttpRequest& request() const override { return request_; }
  HttpLogFields& log() override { return log_; }
  absl::Duration age() const override { return absl::Now() - begun_; }

  void Respond(HttpResponse response) override {
    if (done_ != nullptr) std::exchange(done_, nullptr)(std::move(response));
  }

  // No line asks for a stream.
  void BeginStream(HttpResponse) override {}
  void Write(absl::string_view) override {}
  void WriteBulk(absl::string_view) override {}
  void EndStream() override {}
  void BreakStream(absl::string_view) override {}
  void ResumeBody() override {}

  void SetListener(std::weak_ptr<HttpExchangeListener> listener) override {
    listener_ = std::move(listener);
  }

 private:
  const HttpRequest request_;
  const absl::Time begun_ = absl::Now();
  std::function<void(HttpResponse)> done_;
  HttpLogFields log_;
  std::weak_ptr<HttpExchangeListener> listener_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_LINE_EXCHANGE_H_
