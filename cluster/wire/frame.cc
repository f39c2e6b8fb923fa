// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/frame.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/wire/crc32c.h"
#include "kernels/check.h"
#include "protos/collective.pb.h"

namespace ringfleet::cluster {
namespace {

static_assert(std::endian::native == std::endian::little,
              "values are copied to and from the wire as they lie in memory");

enum WireType : uint8_t { kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

constexpr char Tag(int field, WireType type) {
  return static_cast<char>(field << 3 | type);
}

constexpr char kPayloadTag = Tag(15, kLengthDelimited);
constexpr size_t kPaddedLengthBytes = 5;

// Calls visit(tag, field) for every fixed-size field in the order of the wire.
template <typename Header, typename Visitor>
void ForEachField(Header& header, Visitor&& visit) {
  visit(Tag(1, kFixed32), header.group);
  visit(Tag(2, kFixed32), header.source);
  visit(Tag(3, kFixed64), header.epoch);
  visit(Tag(4, kFixed64), header.sequence);
  visit(Tag(5, kFixed32), header.op_descriptor);
  visit(Tag(6, kFixed32), header.step);
  visit(Tag(7, kFixed64), header.offset_bytes);
  visit(Tag(8, kFixed32), header.crc32c);
  visit(Tag(9, kFixed64), header.check);
  visit(Tag(10, kFixed64), header.count);
}

uint32_t HeaderCrc(const FrameHeader& header) {
  char bytes[5 * 4 + 5 * 8];
  size_t size = 0;
  ForEachField(header, [&](char, const auto& field) {
    if (static_cast<const void*>(&field) == &header.crc32c) return;
    std::memcpy(bytes + size, &field, sizeof(field));
    size += sizeof(field);
  });
  return ExtendCrc32c(0, bytes, size);
}

// Reads a header as EncodeFrameHeader writes it. False when the bytes differ
// from that form anywhere; they may still be a valid message.
bool DecodeFrameHeader(const char* bytes, size_t message_bytes,
                       FrameHeader* header) {
  const char* p = bytes;
  bool as_written = true;
  ForEachField(*header, [&](char tag, auto& field) {
    as_written &= *p == tag;
    std::memcpy(&field, p + 1, sizeof(field));
    p += 1 + sizeof(field);
  });
  as_written &= *p++ == kPayloadTag;
  uint64_t length = 0;
  for (size_t i = 0; i < kPaddedLengthBytes; ++i) {
    const uint8_t byte = static_cast<uint8_t>(p[i]);
    const bool last = i + 1 == kPaddedLengthBytes;
    as_written &= last ? byte < 0x10 : (byte & 0x80) != 0;
    length |= uint64_t{byte & 0x7fu} << (7 * i);
  }
  return as_written && length == message_bytes - kFrameHeaderBytes;
}

absl::Status ParseWithProtobuf(absl::Span<const absl::Span<const char>> pieces,
                               size_t message_bytes, FrameBody* frame) {
  std::string message;
  message.reserve(message_bytes);
  for (const auto piece : pieces) message.append(piece.data(), piece.size());
  v1::Frame parsed;
  if (!parsed.ParseFromString(message)) {
    return absl::DataLossError(
        absl::StrCat("a message of ", message_bytes, " bytes is no Frame"));
  }
  if (parsed.payload().size() > kMaxPayloadBytes) {
    return absl::DataLossError(
        absl::StrCat("a frame's payload has ", parsed.payload().size(),
                     " bytes, want at most ", kMaxPayloadBytes));
  }
  frame->header = {.group = parsed.group(),
                   .source = parsed.source(),
                   .epoch = parsed.epoch(),
                   .sequence = parsed.sequence(),
                   .op_descriptor = parsed.op_descriptor(),
                   .step = parsed.step(),
                   .offset_bytes = parsed.offset_bytes(),
                   .crc32c = parsed.crc32c(),
                   .check = parsed.check(),
                   .count = parsed.count()};
  frame->copy = std::move(*parsed.mutable_payload());
  frame->payload_bytes = frame->copy.size();
  if (frame->payload_bytes > 0) frame->payload.push_back(frame->copy);
  return absl::OkStatus();
}

// Copies the first `size` bytes of `pieces`, which have as many.
void CopyPrefix(absl::Span<const absl::Span<const char>> pieces, size_t size,
                char* out) {
  for (const auto piece : pieces) {
    const auto part = piece.subspan(0, size);
    std::memcpy(out, part.data(), part.size());
    out += part.size();
    size -= part.size();
    if (size == 0) return;
  }
}

}  // namespace

uint32_t FrameCrc(const FrameHeader& header, uint32_t payload_crc,
                  size_t payload_bytes) {
  return CombineCrc32c(HeaderCrc(header), payload_crc, payload_bytes);
}

void EncodeFrameHeader(const FrameHeader& header, size_t payload_bytes,
                       char* out) {
  RF_CHECK(payload_bytes <= kMaxPayloadBytes);
  ForEachField(header, [&](char tag, const auto& field) {
    *out = tag;
    std::memcpy(out + 1, &field, sizeof(field));
    out += 1 + sizeof(field);
  });
  *out++ = kPayloadTag;
  for (size_t i = 0; i + 1 < kPaddedLengthBytes; ++i) {
    *out++ = static_cast<char>((payload_bytes >> (7 * i) & 0x7f) | 0x80);
  }
  *out = static_cast<char>(payload_bytes >> (7 * (kPaddedLengthBytes - 1)));
}

absl::Status ParseFrame(absl::Span<const absl::Span<const char>> pieces,
                        FrameBody* frame) {
  frame->payload.clear();
  size_t message_bytes = 0;
  for (const auto piece : pieces) message_bytes += piece.size();
  if (message_bytes < kFrameHeaderBytes ||
      message_bytes > kFrameHeaderBytes + kMaxPayloadBytes) {
    return ParseWithProtobuf(pieces, message_bytes, frame);
  }
  char straddling[kFrameHeaderBytes];
  const char* bytes = pieces[0].data();
  if (pieces[0].size() < kFrameHeaderBytes) {
    CopyPrefix(pieces, kFrameHeaderBytes, straddling);
    bytes = straddling;
  }
  if (!DecodeFrameHeader(bytes, message_bytes, &frame->header)) {
    return ParseWithProtobuf(pieces, message_bytes, frame);
  }
  size_t skip = kFrameHeaderBytes;
  for (auto piece : pieces) {
    const size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    piece.remove_prefix(skipped);
    if (!piece.empty()) frame->payload.push_back(piece);
  }
  frame->payload_bytes = message_bytes - kFrameHeaderBytes;
  return absl::OkStatus();
}

absl::Status CheckCrc(FrameBody* frame, int peer) {
  uint32_t payload_crc = 0;
  for (const auto piece : frame->payload) {
    payload_crc = ExtendCrc32c(payload_crc, piece.data(), piece.size());
  }
  frame->payload_crc = payload_crc;
  const FrameHeader& header = frame->header;
  const uint32_t crc = FrameCrc(header, payload_crc, frame->payload_bytes);
  if (crc == header.crc32c) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "a frame of rank %d (%s #%u, offset %u, %u bytes) has crc32c %08x, its "
      "header says %08x",
      peer, DescriptorName(header.op_descriptor), header.sequence,
      header.offset_bytes, frame->payload_bytes, crc, header.crc32c));
}

}  // namespace ringfleet::cluster
