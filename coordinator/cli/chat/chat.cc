// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/chat/chat.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/chat/chat_input.h"
#include "coordinator/cli/chat/chat_state.h"
#include "coordinator/cli/chat/fleet_backend.h"
#include "coordinator/cli/chat/http_backend.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/prompt_options.h"
#include "coordinator/cli/run/sampling_options.h"
#include "coordinator/cli/session.h"

namespace ringfleet::coordinator::cli {
namespace {

struct ChatOptions {
  SessionOptions session;
  SamplingOptions sampling;
  std::string url;
  std::string api_key_file;
  std::string system;
};

constexpr char kChatFooter[] = R"(
Each line is a message; /help lists the commands and how to write more lines.
The model's chat template makes the prompt. Reasoning is dimmed on a terminal,
and the speed follows each answer on stderr. Ctrl-C stops an answer; at the
prompt it leaves, as Ctrl-D does. In a pipe only answers go to stdout, without
reasoning, and the first error ends the command.

Examples:
  ringfleet chat --model tests/models/tiny-v3
  ringfleet chat --cluster cluster.yaml --system "Answer in French." --temp 0.6
  ringfleet chat --url http://127.0.0.1:8080
  ringfleet chat --url https://host/v1 --api-key-file key.txt --model NAME
  echo "What is a ring?" | ringfleet chat --cluster cluster.yaml
)";

constexpr char kDim[] = "\033[2m";
constexpr char kPlain[] = "\033[0m";

// Prints an answer as it comes. Not thread-safe.
class AnswerPrinter {
 public:
  // `terminal`: reasoning is shown, dimmed.
  explicit AnswerPrinter(bool terminal) : terminal_(terminal) {}

  absl::Status Print(const AnswerPiece& piece) {
    told_.reasoning += piece.reasoning;
    told_.text += piece.text;
    std::string out;
    if (terminal_ && !piece.reasoning.empty()) {
      if (!std::exchange(dim_, true)) out += kDim;
      out += piece.reasoning;
    }
    if (!piece.text.empty()) absl::StrAppend(&out, Bright("\n\n"), piece.text);
    return PrintText(out);
  }
  absl::Status End() { return PrintText(absl::StrCat(Bright(""), "\n")); }

  // Returns the answer so far.
  const AnswerPiece& told() const { return told_; }

 private:
  // Returns what ends a reasoning, with `gap` behind it, or nothing.
  std::string Bright(absl::string_view gap) {
    return std::exchange(dim_, false) ? absl::StrCat(kPlain, gap) : "";
  }

  const bool terminal_;
  bool dim_ = false;
  AnswerPiece told_;
};

class ChatLoop {
 public:
  // Both must outlive this object. `interactive`: a user sits at a terminal.
  ChatLoop(ChatBackend* backend, ChatState* state, bool interactive)
      : backend_(backend), state_(state), interactive_(interactive) {}

  absl::Status Run() {
    ChatInput input(interactive_ ? ShowPrompt : nullptr);
    while (true) {
      RF_ASSIGN_OR_RETURN(const std::optional<std::string> text, input.Next());
      if (!text.has_value()) break;
      bool quits = false;
      const absl::Status status =
          absl::StartsWith(*text, "/") ? RunLine(*text, &quits) : Answer(*text);
      RF_RETURN_IF_ERROR(Interrupt::Get().status());
      if (quits) return absl::OkStatus();
      if (status.ok()) continue;
      if (!interactive_) return status;
      PrintError(status, /*json=*/false);
    }
    return interactive_ ? PrintText("\n") : absl::OkStatus();
  }

 private:
  static absl::Status ShowPrompt(bool goes_on) {
    return PrintText(goes_on ? "... " : "> ");
  }

  absl::Status RunLine(const std::string& line, bool* quits) {
    RF_ASSIGN_OR_RETURN(const ChatState::Outcome outcome, state_->Run(line));
    std::fputs(outcome.told.c_str(), stderr);
    *quits = outcome.quits;
    return absl::OkStatus();
  }

  absl::Status Answer(const std::string& question) {
    state_->AddQuestion(question);
    AnswerPrinter printer(isatty(STDOUT_FILENO) == 1);
    std::atomic<bool> stopped{false};
    const absl::StatusOr<Generated> generated = [&] {
      std::optional<Interrupt::Catch> stop;
      if (interactive_) {
        stop.emplace([&] {
          // The second one leaves, should the answer not end.
          if (stopped.exchange(true)) return false;
          backend_->Stop();
          return true;
        });
      }
      return backend_->Ask(state_->request(),
                           [&](const AnswerPiece& piece, bool last) {
                             RF_RETURN_IF_ERROR(printer.Print(piece));
                             return last ? printer.End() : absl::OkStatus();
                           });
    }();
    if (generated.ok()) {
      state_->AddAnswer(generated->text, generated->reasoning);
      PrintSummary(*generated, /*is_loaded_for_this=*/false);
      return absl::OkStatus();
    }
    const bool is_stop = stopped && absl::IsCancelled(generated.status()) &&
                         !Interrupt::Get().requested();
    if (!printer.told().empty() || is_stop) {
      RF_RETURN_IF_ERROR(printer.End());
    }
    // A stopped answer is a part of the conversation.
    if (is_stop && !printer.told().text.empty()) {
      state_->AddAnswer(printer.told().text, printer.told().reasoning);
    } else {
      state_->DropQuestion();
    }
    return is_stop ? absl::OkStatus() : generated.status();
  }

  ChatBackend* const backend_;
  ChatState* const state_;
  const bool interactive_;
};

// Returns the first key of a file: a line of its own, or "NAME: KEY" as `serve`
// reads it. Empty lines and comments precede it.
absl::StatusOr<std::string> ReadApiKey(const std::string& path) {
  if (path.empty()) return "";
  RF_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(": ");
    if (colon != absl::string_view::npos) line.remove_prefix(colon + 2);
    return std::string(absl::StripAsciiWhitespace(line));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("usage: --api-key-file ", path, ": no key, want one"));
}

absl::Status RunChat(const ChatOptions& options) {
  RF_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                      SamplingOf(options.sampling));
  ChatState state(std::move(request));
  state.SetSystem(options.system);
  const bool interactive =
      isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  if (!options.url.empty()) {
    if (options.sampling.mask_unused) {
      return absl::InvalidArgumentError(
          "usage: --mask-unused: HTTP has no such field, want it without "
          "--url");
    }
    RF_ASSIGN_OR_RETURN(ApiUrl url, ParseApiUrl(options.url));
    RF_ASSIGN_OR_RETURN(std::string key, ReadApiKey(options.api_key_file));
    HttpBackend backend(std::move(url), std::move(key),
                        options.session.flags.Given("model"));
    return ChatLoop(&backend, &state, interactive).Run();
  }
  SessionOptions session_options = options.session;
  session_options.settings.set_without_mtp(true);
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Open(session_options));
  FleetBackend backend(session.get());
  return session->Finish(ChatLoop(&backend, &state, interactive).Run());
}

}  // namespace

void RegisterChat(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand("chat", "Talk with a model");
  verb->group("One-shot");
  verb->footer(kChatFooter);
  auto options = std::make_shared<ChatOptions>();
  options->session.samples = true;
  const FleetFlags fleet = AddSessionOptions(*verb, options->session);
  CLI::Option* const url =
      verb->add_option("--url", options->url,
                       "Server of OpenAI's API; --model is a name there")
          ->excludes(fleet.cluster)
          ->excludes(fleet.coordinator)
          ->excludes(verb->get_option("--local"))
          ->excludes(verb->get_option("--trace"));
  verb->add_option("--api-key-file", options->api_key_file,
                   "File with the server's key, or with NAME: KEY")
      ->needs(url);
  verb->add_option("--system", options->system, "The system message");
  AddSamplingOptions(*verb, options->sampling);
  verb->callback([options, &invocation] {
    invocation.run = [options] { return RunChat(*options); };
  });
}

}  // namespace ringfleet::coordinator::cli
