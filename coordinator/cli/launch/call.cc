// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/launch/call.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/deadline.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/server.h"
#include "coordinator/cli/json_documents.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"
#include "coordinator/reflection/reflection_client.h"

namespace ringfleet::coordinator::cli {
namespace {

struct CallOptions {
  std::string address;
  std::string action = "list";
  std::string argument;  // The argument of `action`.
  double timeout_seconds = 10;
  bool all_fields = false;
  bool json = false;
};

// Appends what standard input has now, without waiting for more.
absl::Status ReadStdin(JsonDocuments& documents) {
  pollfd in = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&in, 1, /*timeout=*/0) <= 0) return absl::OkStatus();
  char buffer[1 << 16];
  const ssize_t size = read(STDIN_FILENO, buffer, sizeof(buffer));
  if (size < 0 && errno != EINTR && errno != EAGAIN) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read standard input: ", strerror(errno)));
  }
  if (size == 0) documents.End();
  if (size > 0) documents.Append(absl::string_view(buffer, size));
  return absl::OkStatus();
}

// As a line of its own.
absl::Status Print(const std::string& text) {
  return PrintText(
      absl::StrCat(text, text.empty() || text.back() != '\n' ? "\n" : ""));
}

absl::Status CallMethod(ReflectionClient& client, const CallOptions& options,
                        MessageSink replies) {
  const bool from_stdin = options.argument == "-" || options.argument == "@";
  JsonDocuments documents;
  if (!from_stdin) {
    documents.Append(options.argument);
    documents.End();
  }
  return client.Call(
      options.action,
      [&](std::string* document) -> absl::StatusOr<Pull> {
        auto next = documents.Next();
        if (!next && !documents.ended()) {
          RF_RETURN_IF_ERROR(ReadStdin(documents));
          next = documents.Next();
        }
        if (!next) return documents.ended() ? Pull::kEnd : Pull::kNotYet;
        *document = *std::move(next);
        return Pull::kMessage;
      },
      replies, options.all_fields);
}

// Prints the names of services or methods.
absl::Status PrintNames(const std::vector<std::string>& names,
                        const CallOptions& options) {
  if (options.json) {
    return PrintJson({{options.argument.empty() ? "services" : "methods",
                       JsonArray(names)}});
  }
  std::string lines;
  for (const std::string& name : names) absl::StrAppend(&lines, name, "\n");
  return PrintText(lines);
}

absl::Status DescribeSymbols(ReflectionClient& client,
                             const CallOptions& options) {
  std::vector<std::string> symbols = {options.argument};
  if (options.argument.empty()) {
    RF_ASSIGN_OR_RETURN(symbols, client.ListServices());
  }
  Json described = Json::array();
  for (const std::string& symbol : symbols) {
    RF_ASSIGN_OR_RETURN(const std::string text, client.Describe(symbol));
    if (options.json) {
      described.push_back({{"name", symbol}, {"text", text}});
    } else {
      RF_RETURN_IF_ERROR(Print(text));
    }
  }
  return options.json ? PrintJson({{"symbols", std::move(described)}})
                      : absl::OkStatus();
}

// Prints all replies in one document, also those before an error.
absl::Status CallForJson(ReflectionClient& client, const CallOptions& options,
                         Invocation& invocation) {
  Json replies = Json::array();
  const absl::Status called =
      CallMethod(client, options, [&replies](const std::string& reply) {
        replies.push_back(Json::parse(reply));
        return absl::OkStatus();
      });
  if (!called.ok() && replies.empty()) return called;
  RF_RETURN_IF_ERROR(PrintJson({{"replies", std::move(replies)}}));
  invocation.json = false;
  return called;
}

absl::Status Run(const CallOptions& options, Invocation& invocation) {
  RF_ASSIGN_OR_RETURN(const auto address,
                      cluster::ParseAddress(options.address));
  ReflectionClient client(address, cluster::Deadline::After(
                                       absl::Seconds(options.timeout_seconds)));
  RF_RETURN_IF_ERROR(client.Connect());
  if (options.action == "list") {
    auto names = options.argument.empty()
                     ? client.ListServices()
                     : client.ListMethods(options.argument);
    RF_RETURN_IF_ERROR(names.status());
    return PrintNames(*names, options);
  }
  if (options.action == "describe") return DescribeSymbols(client, options);
  return options.json ? CallForJson(client, options, invocation)
                      : CallMethod(client, options, Print);
}

}  // namespace

void RegisterCall(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<CallOptions>();
  CLI::App* verb = app.add_subcommand(
      "call", "List, describe and call what a gRPC server offers");
  verb->group("Fleet");
  verb->add_option("address", options->address, "the server, as HOST:PORT")
      ->required();
  verb->add_option("action", options->action,
                   "list (default), describe, or the method to call: "
                   "package.Service/Method");
  verb->add_option("argument", options->argument,
                   "a service to list, a symbol to describe, or the request "
                   "in JSON; several documents in a row for a stream; - or @ "
                   "reads them from standard input; none is {}");
  verb->add_option("--timeout", options->timeout_seconds,
                   "seconds until everything must have ended (10)")
      ->check(CLI::Range(0.001, 1e6));
  verb->add_flag("--emit-defaults", options->all_fields,
                 "also print fields that have default values");
  verb->add_flag("--json", options->json,
                 "one JSON document: {\"services\"}, {\"methods\"}, "
                 "{\"symbols\"} or {\"replies\"}");
  verb->footer(R"(
Works with every gRPC server that has reflection.

Examples:
  ringfleet call 127.0.0.1:50052
  ringfleet call 127.0.0.1:50052 list ringfleet.v1.Worker
  ringfleet call 127.0.0.1:50052 describe ringfleet.v1.Collective.Link
  ringfleet call 127.0.0.1:50052 grpc.health.v1.Health/Check '{}'
  echo '{"step":1} {"step":2}' |
    ringfleet call 127.0.0.1:50052 ringfleet.v1.Worker/Run -

Exit: 0 done, 2 bad input or unknown symbol, 3 unavailable or too late, 4 the
server contradicts itself, 1 another error of the server.
)");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options, &invocation] {
      return Annotate(Run(*options, invocation), "call");
    };
  });
}

}  // namespace ringfleet::coordinator::cli
