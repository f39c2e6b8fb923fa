// SPDX-License-Identifier: Apache-2.0
// Whatever bytes a peer sends: the reader of frames, with its fast path for
// the layout that we write, must see what protobuf's parser sees, wherever the
// message is cut into pieces. A libFuzzer target; see tests/README.md.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cluster/wire/frame.h"
#include "protos/collective.pb.h"

namespace ringfleet::cluster {
namespace {

class OwnBody final : public FrameBody {
 public:
  void Recycle() override { delete this; }
};

// Takes numbers from the fuzzer's input; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    for (; bytes > 0 && size_ > 0; --bytes, ++data_, --size_) {
      value = value << 8 | *data_;
    }
    return value;
  }
  std::string Rest() const {
    return std::string(reinterpret_cast<const char*>(data_), size_);
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A message in our own layout with a few bytes changed: what a fuzzer would
// hardly find by itself.
std::string DamagedFrame(Input& input) {
  const FrameHeader header{
      .group = static_cast<uint32_t>(input.Number(1)),
      .source = static_cast<uint32_t>(input.Number(1)),
      .epoch = input.Number(8),
      .sequence = input.Number(2),
      .op_descriptor = static_cast<uint32_t>(input.Number(4)),
      .step = static_cast<uint32_t>(input.Number(1)),
      .offset_bytes = input.Number(4),
      .crc32c = static_cast<uint32_t>(input.Number(4)),
      .check = input.Number(2),
      .count = input.Number(4)};
  std::vector<std::pair<size_t, char>> edits(input.Number(1) % 4);
  for (auto& [at, value] : edits) {
    at = input.Number(1);
    value = static_cast<char>(input.Number(1));
  }
  const std::string payload = input.Rest();
  std::string message(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(header, payload.size(), message.data());
  message += payload;
  for (const auto& [at, value] : edits) message[at % message.size()] = value;
  return message;
}

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "frame reader and protobuf differ: %s\n", what);
  std::abort();
}

void Compare(const std::string& message, size_t first_cut, size_t second_cut) {
  const auto all = absl::MakeConstSpan(message);
  first_cut %= message.size() + 1;
  second_cut = first_cut + second_cut % (message.size() - first_cut + 1);
  const absl::Span<const char> pieces[] = {
      all.subspan(0, first_cut), all.subspan(first_cut, second_cut - first_cut),
      all.subspan(second_cut)};
  ReceivedFrame frame(new OwnBody);
  const absl::Status status = ParseFrame(pieces, frame.get());

  v1::Frame want;
  const bool valid = want.ParseFromString(message) &&
                     want.payload().size() <= kMaxPayloadBytes;
  Require(status.ok() == valid, "only one takes it");
  if (!valid) return;
  const FrameHeader& header = frame->header;
  Require(header.group == want.group() && header.source == want.source() &&
              header.epoch == want.epoch() &&
              header.sequence == want.sequence() &&
              header.op_descriptor == want.op_descriptor() &&
              header.step == want.step() &&
              header.offset_bytes == want.offset_bytes() &&
              header.crc32c == want.crc32c() && header.check == want.check() &&
              header.count == want.count(),
          "header");
  std::string payload;
  for (const auto piece : frame->payload) {
    payload.append(piece.data(), piece.size());
  }
  Require(payload == want.payload(), "payload");
  Require(frame->payload_bytes == payload.size(), "payload_bytes");
  // Neither may it crash on a checksum, right or wrong.
  (void)CheckCrc(frame.get(), 1);
}

}  // namespace
}  // namespace ringfleet::cluster

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ringfleet::cluster::Input input(data, size);
  const bool own_layout = input.Number(1) % 2 == 0;
  const size_t first_cut = input.Number(2);
  const size_t second_cut = input.Number(2);
  const std::string message =
      own_layout ? ringfleet::cluster::DamagedFrame(input) : input.Rest();
  ringfleet::cluster::Compare(message, first_cut, second_cut);
  return 0;
}
