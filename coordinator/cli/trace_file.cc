// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/trace_file.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::cli {
namespace {

double Microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// KIND_SEND: "send", the event's category.
std::string KindText(v1::TraceEvent::Kind kind) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::TraceEvent::Kind_Name(kind), "KIND_"));
}

std::string ThreadText(v1::TraceEvent::Thread thread) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::TraceEvent::Thread_Name(thread), "THREAD_"));
}

Json Description(const char* what, uint32_t rank, int thread, Json value) {
  Json event = {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}};
  const bool order = absl::string_view(what) == "process_sort_index";
  event["args"] = {{order ? "sort_index" : "name", std::move(value)}};
  return event;
}

Json CompleteEvent(const v1::TraceEvent& event, const std::string& name,
                   uint32_t rank) {
  Json args = {{"step", event.step()}};
  if (event.has_layer()) args["layer"] = event.layer();
  if (event.bytes() > 0) args["bytes"] = event.bytes();
  if (event.has_peer()) args["peer"] = event.peer();
  return {{"ph", "X"},
          {"name", event.kind() == v1::TraceEvent::KIND_LAYER
                       ? absl::StrCat(name, " ", event.layer())
                       : name},
          {"cat", KindText(event.kind())},
          {"pid", rank},
          {"tid", static_cast<int>(event.thread())},
          {"ts", Microseconds(event.begin_ns())},
          {"dur", Microseconds(static_cast<int64_t>(event.duration_ns()))},
          {"args", std::move(args)}};
}

Json ClockJson(const v1::TraceProgress::Clock& clock) {
  return {{"offset_us", Microseconds(clock.offset_ns())},
          {"error_us", Microseconds(clock.error_ns())}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(
    const std::string& path) {
  absl::StatusOr<std::unique_ptr<OutputFile>> opened = OutputFile::Open(path);
  if (!opened.ok()) {
    return absl::Status(
        opened.status().code(),
        absl::StrCat("usage: --trace ", opened.status().message()));
  }
  std::unique_ptr<TraceFile> file(new TraceFile(path, *std::move(opened)));
  file->file_->Write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  return file;
}

void TraceFile::Write(const Json& event) {
  file_->Write(std::exchange(first_, false) ? "\n" : ",\n");
  file_->Write(event.dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::Status TraceFile::Add(const v1::TraceProgress& progress) {
  if (progress.has_started()) started_ = progress.started();
  if (progress.has_rank()) {
    const v1::TraceProgress::Rank& rank = progress.rank();
    ranks_[rank.rank()].description = rank;
    Write(Description("process_name", rank.rank(), 0,
                      absl::StrCat("rank ", rank.rank(), " (", rank.host(), " ",
                                   rank.address(), ")")));
    Write(Description("process_sort_index", rank.rank(), 0, rank.rank()));
    for (const auto thread : {v1::TraceEvent::THREAD_EXECUTOR,
                              v1::TraceEvent::THREAD_COMMUNICATION}) {
      Write(
          Description("thread_name", rank.rank(), thread, ThreadText(thread)));
    }
  }
  if (progress.has_events()) {
    const uint32_t rank = progress.events().rank();
    const v1::TraceChunk& chunk = progress.events().chunk();
    for (const v1::TraceEvent& event : chunk.events()) {
      if (event.name() >= static_cast<uint32_t>(chunk.names_size())) {
        return absl::InternalError(absl::StrCat("trace: rank ", rank,
                                                " names event ", event.name(),
                                                " of ", chunk.names_size()));
      }
      Write(CompleteEvent(event, chunk.names(static_cast<int>(event.name())),
                          rank));
    }
    ranks_[rank].events += static_cast<uint64_t>(chunk.events_size());
  }
  return absl::OkStatus();
}

Json TraceFile::OtherData() const {
  Json ranks = Json::array();
  for (const auto& [number, rank] : ranks_) {
    const v1::TraceProgress::Rank& what = rank.description;
    ranks.push_back({{"rank", number},
                     {"host", what.host()},
                     {"address", what.address()},
                     {"pid", what.pid()},
                     {"events", rank.events},
                     {"dropped", what.dropped()},
                     {"clock_began", ClockJson(what.began())},
                     {"clock_ended", ClockJson(what.ended())}});
  }
  return {{"program", "ringfleet"},
          {"began", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ",
                                     absl::FromUnixMillis(started_.unix_ms()),
                                     absl::UTCTimeZone())},
          {"began_monotonic_us", Microseconds(started_.steady_ns())},
          {"clock",
           "the coordinator's; a rank's own is ahead by offset_us, "
           "give or take error_us"},
          {"ranks", std::move(ranks)}};
}

absl::Status TraceFile::Finish() {
  file_->Write("\n],\"otherData\":");
  file_->Write(
      OtherData().dump(-1, ' ', false, Json::error_handler_t::replace));
  file_->Write("}\n");
  return Annotate(file_->Finish(), "trace");
}

uint64_t TraceFile::events() const {
  uint64_t events = 0;
  for (const auto& [number, rank] : ranks_) events += rank.events;
  return events;
}

uint64_t TraceFile::dropped() const {
  uint64_t dropped = 0;
  for (const auto& [number, rank] : ranks_) {
    dropped += rank.description.dropped();
  }
  return dropped;
}

}  // namespace ringfleet::coordinator::cli
