// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/run/tokenize.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/session.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator::cli {
namespace {

struct TokenizeOptions {
  SessionOptions session;
  std::string text;
  std::string file;
  bool bos = false;
  std::string ids;
  bool keep_special = false;
  bool json = false;
};

constexpr char kTokenizeFooter[] = R"(
Examples:
  ringfleet tokenize --model DIR -p "Hello, world!"
  ringfleet tokenize --model DIR -f text.txt --bos --json
)";

constexpr char kDetokenizeFooter[] = R"(
Examples:
  ringfleet detokenize --model DIR --ids 19923,14,2058,3
)";

// Ids and the bytes of each.
struct Tokenized {
  std::vector<uint32_t> ids;
  std::vector<std::string> pieces;
};

absl::StatusOr<Tokenized> TokenizeLocally(const std::string& model,
                                          const std::string& text, bool bos) {
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                      Tokenizer::Load(model));
  Tokenized tokenized;
  if (bos) {
    if (!tokenizer->bos_id().has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer ", model, ": --bos, but it names no BOS"));
    }
    tokenized.ids.push_back(*tokenizer->bos_id());
  }
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, tokenizer->Encode(text));
  tokenized.ids.insert(tokenized.ids.end(), ids.begin(), ids.end());
  for (uint32_t id : tokenized.ids) {
    tokenized.pieces.emplace_back(tokenizer->TokenBytes(id));
  }
  return tokenized;
}

absl::StatusOr<Tokenized> TokenizeOnFleet(Session& session,
                                          const std::string& text, bool bos) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_bos(bos);
  InterruptibleCall call;
  v1::TokenizeResponse response;
  const absl::Status status = cluster::FromGrpc(
      session.stub().Tokenize(call.context(), request, &response));
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "tokenize: %.1f MB of text, want less: its ids must fit into one "
        "message of %d MiB; tokenize --model DIR has no limit",
        static_cast<double>(text.size()) * 1e-6,
        cluster::kMaxMessageBytes >> 20));
  }
  RF_RETURN_IF_ERROR(status);
  Tokenized tokenized;
  tokenized.ids.assign(response.ids().begin(), response.ids().end());
  tokenized.pieces.assign(response.pieces().begin(), response.pieces().end());
  return tokenized;
}

absl::Status RunTokenize(const TokenizeOptions& options) {
  std::string text = options.text;
  if (!options.file.empty()) {
    RF_ASSIGN_OR_RETURN(text, ReadTextFile(options.file));
  }
  RF_RETURN_IF_ERROR(CheckUtf8(text));
  Tokenized tokenized;
  if (!options.session.fleet.given()) {
    RF_ASSIGN_OR_RETURN(
        tokenized, TokenizeLocally(options.session.flags.Given("model"), text,
                                   options.bos));
  } else {
    RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                        Session::Open(options.session));
    RF_ASSIGN_OR_RETURN(tokenized,
                        TokenizeOnFleet(*session, text, options.bos));
  }
  if (options.json) {
    return PrintJson({{"ids", JsonArray(tokenized.ids)},
                      {"pieces", JsonArray(tokenized.pieces)}});
  }
  std::string lines;
  for (size_t i = 0; i < tokenized.ids.size(); ++i) {
    absl::StrAppendFormat(
        &lines, "%6u  %s\n", tokenized.ids[i],
        Json(tokenized.pieces[i])
            .dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return PrintText(lines);
}

// Such ids decode to nothing.
void ShowIdsWithoutToken(const std::vector<uint32_t>& ids,
                         const Tokenizer& tokenizer) {
  size_t count = 0;
  uint32_t first = 0;
  for (const uint32_t id : ids) {
    if (!tokenizer.TokenBytes(id).empty()) continue;
    if (count++ == 0) first = id;
  }
  if (count == 0) return;
  std::fprintf(stderr, "%zu of %zu ids have no token, the first is %u\n", count,
               ids.size(), first);
}

absl::Status RunDetokenize(const TokenizeOptions& options) {
  RF_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                      ParseIds("--ids", options.ids));
  RF_RETURN_IF_ERROR(CheckTokenIds(ids));
  std::string text;
  if (!options.session.fleet.given()) {
    RF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                        Tokenizer::Load(options.session.flags.Given("model")));
    text = tokenizer->Decode(ids, options.keep_special);
    ShowIdsWithoutToken(ids, *tokenizer);
  } else {
    RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                        Session::Open(options.session));
    v1::DetokenizeRequest request;
    request.mutable_ids()->Add(ids.begin(), ids.end());
    request.set_keep_special(options.keep_special);
    InterruptibleCall call;
    v1::DetokenizeResponse response;
    RF_RETURN_IF_ERROR(cluster::FromGrpc(
        session->stub().Detokenize(call.context(), request, &response)));
    text = response.text();
  }
  return options.json ? PrintJson({{"text", text}}) : PrintText(text + "\n");
}

// Adds --model and the flags of a running fleet. A model beside a fleet must be
// that fleet's.
void AddSourceOptions(CLI::App& verb, TokenizeOptions& options) {
  options.session.runs_jobs = false;
  CLI::Option_group* source = verb.add_option_group("source");
  options.session.flags.Add(*source, "model");
  const FleetFlags fleet = AddFleetChoice(*source, options.session.fleet);
  source->require_option(1, 2);
  verb.add_option("--local", options.session.local,
                  "Taken as by other verbs; a tokenizer needs no workers")
      ->excludes(fleet.cluster)
      ->excludes(fleet.coordinator)
      ->check(CLI::Range(1, 16));
  verb.add_flag("--json", options.json, "One JSON document on stdout");
}

}  // namespace

void RegisterTokenize(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("tokenize", "Turn text into token ids");
  verb->group("One-shot");
  verb->footer(kTokenizeFooter);
  auto options = std::make_shared<TokenizeOptions>();
  AddSourceOptions(*verb, *options);
  CLI::Option_group* text = verb->add_option_group("text");
  text->add_option("-p,--prompt", options->text, "The text");
  text->add_option("-f,--file", options->file,
                   "File with the text; - for stdin");
  text->require_option(1);
  verb->add_flag("--bos", options->bos, "Put the BOS in front");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options] { return RunTokenize(*options); };
  });
}

void RegisterDetokenize(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("detokenize", "Turn token ids into text");
  verb->group("One-shot");
  verb->footer(kDetokenizeFooter);
  auto options = std::make_shared<TokenizeOptions>();
  AddSourceOptions(*verb, *options);
  verb->add_option("--ids", options->ids, "Token ids: 1,2,3")->required();
  verb->add_flag("--keep-special", options->keep_special,
                 "Keep the text of special tokens");
  verb->callback([options, &invocation] {
    invocation.json = options->json;
    invocation.run = [options] { return RunDetokenize(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
