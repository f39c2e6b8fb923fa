// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/api.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cluster/process/build_info.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/token_endpoints.h"
#include "coordinator/page/page.h"

namespace ringfleet::coordinator {
namespace {

constexpr absl::string_view kModelPrefix = "/v1/models/";

// Returns the text of a part of a path: "a/b" of "a%2Fb".
std::string Unescaped(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

bool IsJsonType(absl::string_view type) {
  const absl::string_view name = type.substr(0, type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(name),
                                "application/json");
}

}  // namespace

enum class Api::Endpoint {
  kHealth,
  kReady,
  kVersion,
  kModels,
  kMetrics,
  kTokenizerInfo,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kApplyTemplate,
  kPage,
  kFleet,
};

struct Api::Route {
  absl::string_view path;
  Endpoint endpoint;
  bool posts;         // POST, else GET and HEAD.
  bool open = false;  // Needs no key.
};

const Api::Route* Api::FindRoute(const std::string& path) {
  static constexpr Route kRoutes[] = {
      {"/health", Endpoint::kHealth, false, true},
      {"/v1/health", Endpoint::kHealth, false, true},
      {"/ping", Endpoint::kHealth, false, true},
      {"/ready", Endpoint::kReady, false, true},
      {"/version", Endpoint::kVersion, false},
      {"/v1/models", Endpoint::kModels, false},
      {"/metrics", Endpoint::kMetrics, false},
      {"/tokenizer_info", Endpoint::kTokenizerInfo, false},
      {"/v1/completions", Endpoint::kCompletions, true},
      {"/v1/chat/completions", Endpoint::kChat, true},
      {"/tokenize", Endpoint::kTokenize, true},
      {"/detokenize", Endpoint::kDetokenize, true},
      {"/apply-template", Endpoint::kApplyTemplate, true},
      {"/", Endpoint::kPage, false, true},
      {"/page/style.css", Endpoint::kPage, false, true},
      {"/page/app.js", Endpoint::kPage, false, true},
      {"/fleet", Endpoint::kFleet, false},
  };
  static constexpr Route kModel = {kModelPrefix, Endpoint::kModels, false};
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
  }
  return absl::StartsWith(path, kModelPrefix) ? &kModel : nullptr;
}

Api::Api(AnswerHost* host, const Access* access, std::string model_dir)
    : host_(host),
      access_(access),
      model_dir_(std::move(model_dir)),
      created_(absl::ToUnixSeconds(absl::Now())) {}

std::optional<HttpResponse> Api::OnHead(const HttpRequest& head,
                                        HttpLogFields* log) {
  const Route* const route = FindRoute(head.path);
  ApiError error;
  if (route == nullptr) {
    error.status = 404;
    error.message = "no such path";
    return ErrorResponse(error);
  }
  const bool known =
      head.method == "OPTIONS" ||
      (route->posts ? head.method == "POST"
                    : head.method == "GET" || head.method == "HEAD");
  if (!known) {
    error.status = 405;
    error.message = absl::StrCat("want ", route->posts ? "POST" : "GET");
    HttpResponse response = ErrorResponse(error);
    response.headers.push_back(
        {"Allow", route->posts ? "POST, OPTIONS" : "GET, HEAD, OPTIONS"});
    return response;
  }
  // A browser's preflight shows no key.
  if (head.method == "OPTIONS") return std::nullopt;
  if (!route->open) {
    auto name = access_->KeyNameOf(head);
    if (!name.ok()) {
      error.status = 401;
      error.message = std::string(name.status().message());
      error.code = "invalid_api_key";
      return ErrorResponse(error);
    }
    log->key_name = *std::move(name);
  }
  if (!route->posts) return std::nullopt;
  const absl::string_view type = head.Header("content-type");
  const absl::string_view encoding = head.Header("content-encoding");
  if (!IsJsonType(type) ||
      !(encoding.empty() || absl::EqualsIgnoreCase(encoding, "identity"))) {
    error.status = 415;
    error.message = "want Content-Type: application/json and no encoding";
    return ErrorResponse(error);
  }
  return std::nullopt;
}

void Api::AddHeaders(const HttpRequest& request, HttpResponse* response) {
  access_->AddCorsHeaders(request, response);
}

void Api::OnEnd(const HttpRequest& request, int status, absl::Duration took) {
  const Route* const route = FindRoute(request.path);
  // Other paths are text from outside, without an end.
  host_->metrics->OnRequestEnd(route == nullptr ? "none"
                               : route->path == kModelPrefix
                                   ? "/v1/models/{model_id}"
                                   : route->path,
                               request.method, status, took);
}

std::optional<ApiError> Api::NotReady() const {
  if (host_->draining) {
    return ApiError{.status = 503,
                    .message = "the server is ending, want another one",
                    .retry_after_s = 5};
  }
  const uint32_t positions = host_->jobs->context();
  if (positions > 0) host_->positions = positions;
  // A fleet that forms again keeps its jobs waiting.
  if (host_->positions > 0) return std::nullopt;
  ApiError error = ErrorOf(host_->jobs->ready());
  error.status = 503;
  error.retry_after_s = 5;
  return error;
}

HttpResponse Api::Ready() const {
  const absl::Status status =
      host_->draining ? absl::UnavailableError("the server is ending")
                      : host_->jobs->ready();
  if (!status.ok()) {
    ApiError error = ErrorOf(status);
    error.status = 503;
    error.retry_after_s = 5;
    return ErrorResponse(error);
  }
  HttpResponse response;
  response.body = "{\"status\":\"ok\"}";
  return response;
}

HttpResponse Api::ModelList(const HttpRequest& request) const {
  std::string id;
  AppendJsonString(host_->served_name, &id);
  std::string model = absl::StrCat(
      "{\"id\":", id, ",\"object\":\"model\",\"created\":", created_,
      ",\"owned_by\":\"ringfleet\","
      "\"root\":",
      id, ",\"parent\":null,\"max_model_len\":");
  const uint32_t positions = host_->positions;
  absl::StrAppend(&model, positions > 0 ? absl::StrCat(positions) : "null",
                  "}");
  HttpResponse response;
  absl::string_view escaped = request.path;
  if (!absl::ConsumePrefix(&escaped, kModelPrefix)) {
    response.body =
        absl::StrCat("{\"object\":\"list\",\"data\":[", model, "]}");
    return response;
  }
  const std::string wanted = Unescaped(escaped);
  if (wanted != host_->served_name) {
    return ErrorResponse(
        {.status = 404,
         .message =
             absl::StrCat("model '", wanted.substr(0, 200),
                          "' is not served, want '", host_->served_name, "'"),
         .param = "model",
         .code = "model_not_found"});
  }
  response.body = std::move(model);
  return response;
}

void Api::OnPool(std::shared_ptr<HttpExchange> exchange,
                 std::function<HttpResponse(const HttpRequest&)> respond) {
  HttpLoop* const loop = host_->loop;
  const bool posted = host_->pool->Post([loop, exchange, respond] {
    loop->Post([exchange, response = respond(exchange->request())]() mutable {
      exchange->Respond(std::move(response));
    });
  });
  if (posted) return;
  exchange->Respond(ErrorResponse(
      {.status = 429,
       .message = "too many requests arrive at a time; try again later",
       .retry_after_s = 1}));
}

void Api::OnRequest(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.content_type.clear();
    return exchange->Respond(std::move(response));
  }
  const ServedModel& model = *host_->model;
  const Endpoint endpoint = FindRoute(request.path)->endpoint;
  switch (endpoint) {
    case Endpoint::kHealth:
      // A server that ends is healthy.
      if (host_->jobs->context() == 0) return exchange->Respond(Ready());
      response.body = "{\"status\":\"ok\"}";
      return exchange->Respond(std::move(response));
    case Endpoint::kReady:
      return exchange->Respond(Ready());
    case Endpoint::kVersion:
      response.body = "{\"version\":";
      AppendJsonString(cluster::GetBuildInfo().version(), &response.body);
      response.body += '}';
      return exchange->Respond(std::move(response));
    case Endpoint::kModels:
      NotReady();  // Asks for the positions.
      return exchange->Respond(ModelList(request));
    case Endpoint::kMetrics:
      response.content_type = "text/plain; version=0.0.4; charset=utf-8";
      response.body = host_->metrics->Text(
          host_->served_name, host_->jobs->state(), access_->figures());
      return exchange->Respond(std::move(response));
    case Endpoint::kPage: {
      const PageFile file = *FindPageFile(request.path);
      response.content_type = std::string(file.content_type);
      response.body = std::string(file.text);
      response.headers = {{"Content-Security-Policy", kPagePolicy},
                          {"X-Content-Type-Options", "nosniff"},
                          {"Referrer-Policy", "no-referrer"},
                          {"Cache-Control", "no-cache"}};
      return exchange->Respond(std::move(response));
    }
    case Endpoint::kFleet:
      response.body = FleetJson(host_->jobs->state(), absl::Now());
      return exchange->Respond(std::move(response));
    case Endpoint::kCompletions:
    case Endpoint::kChat:
      if (auto error = NotReady(); error.has_value()) {
        return exchange->Respond(ErrorResponse(*error));
      }
      return Answer::Start(host_, endpoint == Endpoint::kChat,
                           std::move(exchange));
    case Endpoint::kTokenizerInfo:
      return OnPool(std::move(exchange), [this](const HttpRequest&) {
        return TokenizerInfo(*host_->model, model_dir_);
      });
    case Endpoint::kTokenize:
      NotReady();
      return OnPool(
          std::move(exchange),
          [&model, positions = host_->positions.load()](const HttpRequest& of) {
            return Tokenize(model, positions, of.body);
          });
    case Endpoint::kDetokenize:
      return OnPool(std::move(exchange), [&model](const HttpRequest& of) {
        return Detokenize(model, of.body);
      });
    case Endpoint::kApplyTemplate:
      return OnPool(std::move(exchange), [&model](const HttpRequest& of) {
        return ApplyTemplate(model, of.body);
      });
  }
}

}  // namespace ringfleet::coordinator
