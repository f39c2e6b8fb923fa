// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/batch_json.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/http/json_text.h"
#include "coordinator/tokenizer/utf8.h"

namespace ringfleet::coordinator {
namespace {

constexpr size_t kMostNameBytes = 255;
constexpr int64_t kHourMs = 3'600'000;

// Appends `,"name":` and a time in seconds, or null for 0.
void AppendTime(absl::string_view name, int64_t ms, std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  if (ms == 0) {
    absl::StrAppend(out, "null");
  } else {
    absl::StrAppend(out, ms / 1000);
  }
}

void AppendText(absl::string_view name, absl::string_view text,
                std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonString(text, out);
}

void AppendTextOrNull(absl::string_view name, absl::string_view text,
                      std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonStringOrNull(text, out);
}

// Returns "24h" of a day, and "90s" where hours do not suffice. A batch that
// never expires has the window "none".
std::string WindowOf(const BatchRecord& batch) {
  if (batch.expires_ms == 0) return "none";
  const int64_t ms = batch.expires_ms - batch.created_ms;
  return ms % kHourMs == 0 ? absl::StrCat(ms / kHourMs, "h")
                           : absl::StrCat(ms / 1000, "s");
}

// Replaces the paths of a folder and of what it has.
void HideFolder(const std::string& folder, std::string* message) {
  constexpr absl::string_view kShown = "the store";
  size_t at = 0;
  while ((at = message->find(folder, at)) != std::string::npos) {
    size_t end = at + folder.size();
    while (end < message->size() &&
           (absl::ascii_isalnum((*message)[end]) ||
            absl::StrContains("/._-", (*message)[end]))) {
      ++end;
    }
    message->replace(at, end - at, kShown.data(), kShown.size());
    at += kShown.size();
  }
}

}  // namespace

std::string FileJson(const FileRecord& file) {
  std::string out = "{\"id\":";
  AppendJsonString(file.id, &out);
  absl::StrAppend(&out, ",\"object\":\"file\",\"bytes\":", file.bytes);
  AppendTime("created_at", file.created_ms, &out);
  if (file.expires_ms > 0) AppendTime("expires_at", file.expires_ms, &out);
  AppendText("filename", file.name, &out);
  AppendText("purpose", file.purpose, &out);
  absl::StrAppend(&out, ",\"status\":\"processed\",\"status_details\":null}");
  return out;
}

std::string BatchJson(const BatchRecord& batch) {
  std::string out = "{\"id\":";
  AppendJsonString(batch.id, &out);
  absl::StrAppend(&out, ",\"object\":\"batch\"");
  AppendText("endpoint", batch.endpoint, &out);
  AppendText("model", batch.model, &out);
  absl::StrAppend(&out, ",\"errors\":");
  if (batch.errors.empty()) {
    absl::StrAppend(&out, "null");
  } else {
    absl::StrAppend(&out, "{\"object\":\"list\",\"data\":", batch.errors, "}");
  }
  AppendText("input_file_id", batch.input_file, &out);
  AppendText("completion_window", WindowOf(batch), &out);
  AppendText("status", batch.state, &out);
  AppendTextOrNull("output_file_id", batch.output_file, &out);
  AppendTextOrNull("error_file_id", batch.error_file, &out);
  AppendTime("created_at", batch.created_ms, &out);
  AppendTime("in_progress_at", batch.in_progress_ms, &out);
  AppendTime("expires_at", batch.expires_ms, &out);
  AppendTime("finalizing_at", batch.finalizing_ms, &out);
  AppendTime("completed_at", batch.completed_ms, &out);
  AppendTime("failed_at", batch.failed_ms, &out);
  AppendTime("expired_at", batch.expired_ms, &out);
  AppendTime("cancelling_at", batch.cancelling_ms, &out);
  AppendTime("cancelled_at", batch.cancelled_ms, &out);
  absl::StrAppend(&out, ",\"request_counts\":{\"total\":", batch.total,
                  ",\"completed\":", batch.completed,
                  ",\"failed\":", batch.failed, "}");
  absl::StrAppend(
      &out, ",\"usage\":{\"input_tokens\":", batch.prompt_tokens,
      ",\"input_tokens_details\":{\"cached_tokens\":", batch.cached_tokens,
      "},\"output_tokens\":", batch.completion_tokens,
      ",\"output_tokens_details\":{\"reasoning_tokens\":",
      batch.reasoning_tokens,
      "},\"total_tokens\":", batch.prompt_tokens + batch.completion_tokens,
      "}");
  absl::StrAppend(&out, ",\"metadata\":",
                  batch.metadata.empty() ? "null" : batch.metadata, "}");
  return out;
}

std::string ListJson(const ListPage& page) {
  const size_t count = std::min(page.limit, page.objects.size());
  std::string out = "{\"object\":\"list\",\"data\":[";
  absl::StrAppend(
      &out,
      absl::StrJoin(page.objects.begin(),
                    page.objects.begin() + static_cast<std::ptrdiff_t>(count),
                    ","),
      "]");
  AppendTextOrNull("first_id", count == 0 ? "" : page.ids.front(), &out);
  AppendTextOrNull("last_id", count == 0 ? "" : page.ids[count - 1], &out);
  absl::StrAppend(&out, ",\"has_more\":",
                  page.objects.size() > count ? "true" : "false", "}");
  return out;
}

std::string CleanFileName(absl::string_view name) {
  const size_t slash = name.find_last_of("/\\");
  if (slash != absl::string_view::npos) name.remove_prefix(slash + 1);
  size_t bytes = std::min(name.size(), kMostNameBytes);
  const bool is_text = CheckUtf8(name).ok();
  if (is_text && bytes < name.size()) {
    while (bytes > 0 && (name[bytes] & 0xC0) == 0x80) --bytes;
  }
  std::string out(name.substr(0, bytes));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_iscntrl(byte) || (byte >= 0x80 && !is_text)) c = '_';
  }
  return out.empty() ? "upload" : out;
}

ApiError StoreErrorOf(const absl::Status& status, const Store& store) {
  ApiError error = ErrorOf(status);
  HideFolder(store.folder(), &error.message);
  const bool lost = store.is_lost();
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      error.status = 500;  // A file that cannot be where it is.
      break;
    case absl::StatusCode::kAlreadyExists:
      error.status = 409;
      error.should_retry = false;
      break;
    case absl::StatusCode::kFailedPrecondition:
      error.status = lost ? 503 : 409;
      error.should_retry = lost;
      break;
    case absl::StatusCode::kResourceExhausted:
      error.status = 507;
      error.code = "insufficient_storage";
      error.retry_after_s = 0;
      error.should_retry = false;
      break;
    default:
      break;
  }
  return error;
}

}  // namespace ringfleet::coordinator
