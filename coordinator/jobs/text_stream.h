// SPDX-License-Identifier: Apache-2.0
// The text of a job's tokens as they come, up to a stop string.
#ifndef RINGFLEET_COORDINATOR_JOBS_TEXT_STREAM_H_
#define RINGFLEET_COORDINATOR_JOBS_TEXT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator {

// Turns tokens into whole characters. A stop token is text like another unless
// it is a special one. Text that may be the beginning of a stop string is held
// back until more tokens decide. Not thread-safe.
class TextStream {
 public:
  // Null: the text stays empty. The tokenizer must outlive this object. `stops`
  // are UTF-8 and not empty. `keeps_stop`: the text ends with the stop string
  // that was found, else before it.
  explicit TextStream(const Tokenizer* tokenizer,
                      std::vector<std::string> stops = {},
                      bool keeps_stop = false);

  // Returns the text to append. Call neither function after a stop.
  std::string Add(uint32_t id);
  // Ends the text: returns all that is held back.
  std::string Finish();

  // Returns the stop string that has ended the text.
  const std::optional<std::string>& stop() const { return stop_; }
  // Returns the bytes of text of all tokens so far, held back or not.
  size_t decoded_bytes() const { return decoded_bytes_; }

 private:
  // Returns what of `held_` can be told.
  std::string Release();

  std::optional<StreamDecoder> decoder_;
  const std::vector<std::string> stops_;
  const bool keeps_stop_;
  std::string held_;
  size_t decoded_bytes_ = 0;
  std::optional<std::string> stop_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_JOBS_TEXT_STREAM_H_
