// SPDX-License-Identifier: Apache-2.0
#include "coordinator/batch/multipart.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "coordinator/http/http_message.h"

namespace ringfleet::coordinator {
namespace {

// RFC 2046, section 5.1.1.
constexpr size_t kMostBoundary = 70;
constexpr absl::string_view kLineEnd = "\r\n";
// White space behind a boundary.
constexpr size_t kMostPadding = 200;

absl::Status NoForm(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the body is no multipart/form-data: ", why));
}

using Parameters = std::vector<std::pair<std::string, std::string>>;

// Reads a quoted text, whose first quote is read, and what follows it. A
// backslash escapes quotes and itself only, since some clients send paths of
// Windows.
std::optional<std::string> TakeQuoted(absl::string_view* text) {
  std::string out;
  for (size_t i = 0; i < text->size(); ++i) {
    const char c = (*text)[i];
    if (c == '"') {
      text->remove_prefix(i + 1);
      return out;
    }
    const char next = i + 1 < text->size() ? (*text)[i + 1] : '\0';
    if (c == '\\' && (next == '"' || next == '\\')) ++i;
    out.push_back((*text)[i]);
  }
  return std::nullopt;
}

// Reads `; name=value; name="value"`. Returns nothing if it is something else.
// Names are in lower case.
std::optional<Parameters> ParametersOf(absl::string_view text) {
  Parameters out;
  while (true) {
    text = absl::StripAsciiWhitespace(text);
    if (text.empty()) return out;
    if (!absl::ConsumePrefix(&text, ";")) return std::nullopt;
    text = absl::StripLeadingAsciiWhitespace(text);
    if (text.empty()) return out;
    const size_t equals = text.find_first_of("=;\"");
    if (equals == absl::string_view::npos || text[equals] != '=') {
      return std::nullopt;
    }
    std::string name = absl::AsciiStrToLower(
        absl::StripTrailingAsciiWhitespace(text.substr(0, equals)));
    text = absl::StripLeadingAsciiWhitespace(text.substr(equals + 1));
    std::optional<std::string> value;
    if (absl::ConsumePrefix(&text, "\"")) {
      value = TakeQuoted(&text);
    } else {
      const size_t end = std::min(text.find(';'), text.size());
      value =
          std::string(absl::StripTrailingAsciiWhitespace(text.substr(0, end)));
      text.remove_prefix(end);
    }
    if (!value.has_value()) return std::nullopt;
    out.emplace_back(std::move(name), *std::move(value));
  }
}

const std::string* FindParameter(const Parameters& parameters,
                                 absl::string_view name) {
  for (const auto& [known, value] : parameters) {
    if (known == name) return &value;
  }
  return nullptr;
}

// Returns the text of "UTF-8''a%20b" (RFC 5987).
std::optional<std::string> ExtendedValue(absl::string_view value) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(value, absl::MaxSplits('\'', 2));
  if (parts.size() != 3 || !absl::EqualsIgnoreCase(parts[0], "utf-8")) {
    return std::nullopt;
  }
  return UnescapedUrl(parts[2]);
}

// Reads the head of a part without its last empty line.
absl::StatusOr<FormPart> ReadPartHead(absl::string_view head) {
  std::optional<Parameters> parameters;
  for (const absl::string_view line : absl::StrSplit(head, kLineEnd)) {
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) {
      return NoForm("a header of a part has no colon");
    }
    const absl::string_view name =
        absl::StripAsciiWhitespace(line.substr(0, colon));
    absl::string_view value =
        absl::StripAsciiWhitespace(line.substr(colon + 1));
    if (absl::EqualsIgnoreCase(name, "content-transfer-encoding")) {
      if (!absl::EqualsIgnoreCase(value, "binary") &&
          !absl::EqualsIgnoreCase(value, "8bit") &&
          !absl::EqualsIgnoreCase(value, "7bit")) {
        return NoForm("a part is encoded, want binary");
      }
      continue;
    }
    if (!absl::EqualsIgnoreCase(name, "content-disposition")) continue;
    const size_t kind = std::min(value.find(';'), value.size());
    if (!absl::EqualsIgnoreCase(
            absl::StripAsciiWhitespace(value.substr(0, kind)), "form-data")) {
      return NoForm("the disposition of a part is not form-data");
    }
    parameters = ParametersOf(value.substr(kind));
    if (!parameters.has_value()) {
      return NoForm("the disposition of a part has malformed parameters");
    }
  }
  if (!parameters.has_value()) {
    return NoForm("a part has no Content-Disposition");
  }
  const std::string* const name = FindParameter(*parameters, "name");
  if (name == nullptr) return NoForm("a part has no name");
  FormPart part = {.name = *name};
  if (const auto* const file = FindParameter(*parameters, "filename")) {
    part.file_name = *file;
  }
  if (const auto* const file = FindParameter(*parameters, "filename*")) {
    if (auto text = ExtendedValue(*file)) part.file_name = *std::move(text);
  }
  return part;
}

}  // namespace

absl::StatusOr<std::string> BoundaryOf(absl::string_view content_type) {
  const size_t kind = std::min(content_type.find(';'), content_type.size());
  const auto parameters = ParametersOf(content_type.substr(kind));
  const std::string* const boundary =
      parameters.has_value() ? FindParameter(*parameters, "boundary") : nullptr;
  if (boundary == nullptr || boundary->empty() ||
      boundary->size() > kMostBoundary) {
    return absl::InvalidArgumentError(
        absl::StrCat("Content-Type: want multipart/form-data with a boundary "
                     "of 1 to ",
                     kMostBoundary, " bytes"));
  }
  return *boundary;
}

// The first boundary may begin the body: then a CRLF is missing before it.
MultipartReader::MultipartReader(absl::string_view boundary,
                                 FormReceiver* receiver)
    : delimiter_(absl::StrCat(kLineEnd, "--", boundary)),
      receiver_(receiver),
      buffer_(kLineEnd),
      held_(buffer_) {}

absl::Status MultipartReader::Read(absl::string_view bytes) {
  buffer_.erase(0, static_cast<size_t>(held_.data() - buffer_.data()));
  absl::StrAppend(&buffer_, bytes);
  held_ = buffer_;
  bool more = true;
  while (more) {
    more = false;
    switch (state_) {
      case State::kPreamble:
      case State::kValue:
        RF_RETURN_IF_ERROR(ReadValue(&more));
        break;
      case State::kBoundary:
        RF_RETURN_IF_ERROR(ReadBoundary(&more));
        break;
      case State::kHead:
        RF_RETURN_IF_ERROR(ReadHead(&more));
        break;
      case State::kEpilogue:
        Consume(held_.size());
        break;
    }
  }
  return absl::OkStatus();
}

absl::Status MultipartReader::ReadValue(bool* more) {
  const size_t found = held_.find(delimiter_);
  *more = found != absl::string_view::npos;
  // A part of the delimiter may be at the end.
  const size_t bytes =
      *more ? found
            : held_.size() - std::min(held_.size(), delimiter_.size() - 1);
  if (state_ == State::kValue) {
    if (bytes > 0) {
      RF_RETURN_IF_ERROR(receiver_->TakeValue(held_.substr(0, bytes)));
    }
    if (*more) RF_RETURN_IF_ERROR(receiver_->EndPart());
  }
  Consume(bytes);
  if (!*more) return absl::OkStatus();
  Consume(delimiter_.size());
  state_ = State::kBoundary;
  return absl::OkStatus();
}

absl::Status MultipartReader::ReadBoundary(bool* more) {
  *more = true;
  if (absl::ConsumePrefix(&held_, "--")) {
    state_ = State::kEpilogue;
    return absl::OkStatus();
  }
  const size_t end = held_.find_first_not_of(" \t");
  const absl::string_view line = held_.substr(std::min(end, held_.size()));
  if (absl::StartsWith(line, kLineEnd)) {
    Consume(end + kLineEnd.size());
    state_ = State::kHead;
    return absl::OkStatus();
  }
  *more = false;
  if (held_.size() < kMostPadding &&
      (held_ == "-" || line.empty() || line == "\r")) {
    return absl::OkStatus();
  }
  return NoForm("more than the boundary is in its line");
}

absl::Status MultipartReader::ReadHead(bool* more) {
  const size_t end = held_.find("\r\n\r\n");
  if (std::min(end, held_.size()) > kMostPartHead) {
    return NoForm(absl::StrCat("the head of a part is longer than ",
                               kMostPartHead, " bytes"));
  }
  if (absl::StartsWith(held_, kLineEnd)) return NoForm("a part has no head");
  if (end == absl::string_view::npos) return absl::OkStatus();
  if (++parts_ > kMostFormParts) {
    return NoForm(absl::StrCat("more than ", kMostFormParts, " parts"));
  }
  RF_ASSIGN_OR_RETURN(const FormPart part, ReadPartHead(held_.substr(0, end)));
  RF_RETURN_IF_ERROR(receiver_->BeginPart(part));
  Consume(end + 2 * kLineEnd.size());
  *more = true;
  state_ = State::kValue;
  return absl::OkStatus();
}

absl::Status MultipartReader::End() {
  if (state_ == State::kEpilogue) return absl::OkStatus();
  return NoForm("it ends before its last boundary");
}

}  // namespace ringfleet::coordinator
