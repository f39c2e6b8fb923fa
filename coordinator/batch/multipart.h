// SPDX-License-Identifier: Apache-2.0
// Bodies of multipart/form-data (RFC 7578), read as they come.
#ifndef RINGFLEET_COORDINATOR_BATCH_MULTIPART_H_
#define RINGFLEET_COORDINATOR_BATCH_MULTIPART_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ringfleet::coordinator {

// Parts of a form, and bytes before the value of each.
inline constexpr size_t kMostFormParts = 32;
inline constexpr size_t kMostPartHead = size_t{8} << 10;

struct FormPart {
  std::string name;
  // As sent: it may be a path, and need not be UTF-8. Absent: no file.
  std::optional<std::string> file_name;
};

// Takes the parts of a form in their order. An error ends the reading.
class FormReceiver {
 public:
  virtual ~FormReceiver() = default;
  virtual absl::Status BeginPart(const FormPart& part) = 0;
  // Takes the next bytes of the part's value.
  virtual absl::Status TakeValue(absl::string_view bytes) = 0;
  virtual absl::Status EndPart() = 0;
};

// Returns the boundary of "multipart/form-data; boundary=...".
// INVALID_ARGUMENT: there is none, or it is longer than 70 bytes.
absl::StatusOr<std::string> BoundaryOf(absl::string_view content_type);

// Keeps at most the last piece, and the head of one part. Not thread-safe.
//
// Errors: INVALID_ARGUMENT: not such a form, or beyond the limits above. Those
// of the receiver. After an error no more calls are allowed.
class MultipartReader {
 public:
  // `receiver` must outlive this object.
  MultipartReader(absl::string_view boundary, FormReceiver* receiver);
  MultipartReader(const MultipartReader&) = delete;
  MultipartReader& operator=(const MultipartReader&) = delete;

  // Reads the next bytes of the body.
  absl::Status Read(absl::string_view bytes);
  // Ends the body.
  absl::Status End();

 private:
  enum class State { kPreamble, kBoundary, kHead, kValue, kEpilogue };

  // Read as far as the bytes that have come allow. Set `more` if they went
  // over to another state.
  absl::Status ReadValue(bool* more);
  absl::Status ReadBoundary(bool* more);
  absl::Status ReadHead(bool* more);
  // Drops bytes in front.
  void Consume(size_t bytes) { held_.remove_prefix(bytes); }

  const std::string delimiter_;  // With the CRLF before it.
  FormReceiver* const receiver_;
  State state_ = State::kPreamble;
  size_t parts_ = 0;
  std::string buffer_;
  absl::string_view held_;  // The part of buffer_ that is not read yet.
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_BATCH_MULTIPART_H_
