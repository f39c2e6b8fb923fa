// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/api.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

bool IsType(absl::string_view type, absl::string_view wanted) {
  const absl::string_view name = type.substr(0, type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(name), wanted);
}

// Returns true for paths of the batch API.
bool IsOfStore(absl::string_view path) {
  return absl::StartsWith(path, "/v1/files") ||
         absl::StartsWith(path, "/v1/batches");
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
  HttpRoute route;
  Endpoint endpoint;
};

const Api::Route* Api::FindOwn(const std::string& path) {
  static constexpr auto get = [](absl::string_view name, Endpoint endpoint,
                                 bool open = false) {
    return Route{{.name = name, .gets = true, .open = open}, endpoint};
  };
  static constexpr auto post = [](absl::string_view name, Endpoint endpoint) {
    return Route{{.name = name, .posts = true}, endpoint};
  };
  static constexpr Route kRoutes[] = {
      get("/health", Endpoint::kHealth, true),
      get("/v1/health", Endpoint::kHealth, true),
      get("/ping", Endpoint::kHealth, true),
      get("/ready", Endpoint::kReady, true),
      get("/version", Endpoint::kVersion),
      get("/v1/models", Endpoint::kModels),
      get("/metrics", Endpoint::kMetrics),
      get("/tokenizer_info", Endpoint::kTokenizerInfo),
      post("/v1/completions", Endpoint::kCompletions),
      post("/v1/chat/completions", Endpoint::kChat),
      post("/tokenize", Endpoint::kTokenize),
      post("/detokenize", Endpoint::kDetokenize),
      post("/apply-template", Endpoint::kApplyTemplate),
      get("/", Endpoint::kPage, true),
      get("/page/style.css", Endpoint::kPage, true),
      get("/page/app.js", Endpoint::kPage, true),
      get("/fleet", Endpoint::kFleet),
  };
  static constexpr Route kModel =
      get("/v1/models/{model_id}", Endpoint::kModels);
  for (const Route& own : kRoutes) {
    if (own.route.name == path) return &own;
  }
  return absl::StartsWith(path, kModelPrefix) ? &kModel : nullptr;
}

const HttpRoute* Api::Find(const std::string& path) const {
  if (const Route* const own = FindOwn(path)) return &own->route;
  return more_ != nullptr ? more_->Find(path) : nullptr;
}

Api::Api(AnswerHost* host, const Access* access, std::string model_dir,
         HttpRoutes* more)
    : host_(host),
      access_(access),
      model_dir_(std::move(model_dir)),
      more_(more),
      created_(absl::ToUnixSeconds(absl::Now())) {}

std::optional<HttpResponse> Api::OnHead(const HttpRequest& head,
                                        HttpLogFields* log) {
  const HttpRoute* const route = Find(head.path);
  if (route == nullptr) {
    return ErrorResponse({.status = 404,
                          .message = more_ == nullptr && IsOfStore(head.path)
                                         ? "files and batches need a store, "
                                           "want a coordinator with state_dir"
                                         : "no such path"});
  }
  std::vector<absl::string_view> methods;
  if (route->gets) methods = {"GET", "HEAD"};
  if (route->posts) methods.push_back("POST");
  if (route->deletes) methods.push_back("DELETE");
  methods.push_back("OPTIONS");
  if (std::find(methods.begin(), methods.end(), head.method) == methods.end()) {
    HttpResponse response = ErrorResponse(
        {.status = 405,
         .message = absl::StrCat("want ", absl::StrJoin(methods, ", "))});
    response.headers.push_back({"Allow", absl::StrJoin(methods, ", ")});
    return response;
  }
  // A browser's preflight shows no key.
  if (head.method == "OPTIONS") return std::nullopt;
  if (!route->open) {
    auto name = access_->KeyNameOf(head);
    if (!name.ok()) {
      return ErrorResponse({.status = 401,
                            .message = std::string(name.status().message()),
                            .code = "invalid_api_key"});
    }
    log->key_name = *std::move(name);
  }
  if (head.method != "POST") return std::nullopt;
  const bool form = route->body == HttpRoute::Body::kForm;
  const absl::string_view type =
      form ? "multipart/form-data" : "application/json";
  const absl::string_view encoding = head.Header("content-encoding");
  if (route->body != HttpRoute::Body::kAny &&
      (!IsType(head.Header("content-type"), type) ||
       !(encoding.empty() || absl::EqualsIgnoreCase(encoding, "identity")))) {
    return ErrorResponse({.status = 415,
                          .message = absl::StrCat("want Content-Type: ", type,
                                                  " and no encoding")});
  }
  // Uploads are long. Answers look themselves, once their body has come.
  if (auto draining = Draining(); form && draining.has_value()) {
    return ErrorResponse(*draining);
  }
  return std::nullopt;
}

std::shared_ptr<HttpBodySink> Api::OpenBody(
    const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (request.method != "POST" || FindOwn(request.path) != nullptr ||
      more_->Find(request.path)->body != HttpRoute::Body::kForm) {
    return nullptr;
  }
  return more_->OpenForm(exchange);
}

void Api::AddHeaders(const HttpRequest& request, HttpResponse* response) {
  access_->AddCorsHeaders(request, response);
}

void Api::OnEnd(const HttpRequest& request, int status, absl::Duration took) {
  const HttpRoute* const route = Find(request.path);
  // Other paths are text from outside, without an end.
  host_->metrics->OnRequestEnd(route == nullptr ? "none" : route->name,
                               request.method, status, took);
}

std::optional<ApiError> Api::Draining() const {
  if (!host_->draining) return std::nullopt;
  return ApiError{.status = 503,
                  .message = "the server is ending, want another one",
                  .retry_after_s = 5};
}

std::optional<ApiError> Api::NotReady() const {
  if (auto draining = Draining(); draining.has_value()) return draining;
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
  const std::string wanted = UnescapedUrl(escaped);
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
       .code = kRateLimit,
       .retry_after_s = 1}));
}

void Api::OnRequest(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& request = exchange->request();
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.content_type.clear();
    return exchange->Respond(std::move(response));
  }
  const Route* const own = FindOwn(request.path);
  if (own == nullptr) return more_->OnRequest(std::move(exchange));
  const ServedModel& model = *host_->model;
  switch (own->endpoint) {
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
      return Answer::Start(host_, own->endpoint == Endpoint::kChat,
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
