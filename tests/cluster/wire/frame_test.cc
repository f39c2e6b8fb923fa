// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "cluster/wire/crc32c.h"
#include "protos/collective.pb.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;

FrameHeader SomeHeader() {
  return {
      .group = 0x01020304,
      .source = 7,
      .epoch = 0x1122334455667788,
      .sequence = 42,
      .op_descriptor = PackDescriptor(
          {Operation::kAllReduce, Algorithm::kRing, Wire::kBf16, Lane::kRight}),
      .step = 3,
      .offset_bytes = 1 << 20,
      .crc32c = 0xdeadbeef,
      .check = ~uint64_t{0},
      .count = 7168};
}

std::string Encode(const FrameHeader& header, const std::string& payload) {
  std::string bytes(kFrameHeaderBytes, '\0');
  EncodeFrameHeader(header, payload.size(), bytes.data());
  return bytes + payload;
}

class OwnBody final : public FrameBody {
 public:
  void Recycle() override { delete this; }

  std::string message;  // What the pieces point into.
};

std::string Payload(const ReceivedFrame& frame) {
  std::string payload;
  for (const auto piece : frame->payload) {
    payload.append(piece.data(), piece.size());
  }
  return payload;
}

// Parses `bytes` cut at `cut`.
absl::StatusOr<ReceivedFrame> Parse(const std::string& bytes, size_t cut = 0) {
  auto* const body = new OwnBody;
  ReceivedFrame frame(body);
  body->message = bytes;
  const auto all = absl::MakeConstSpan(body->message);
  const absl::Span<const char> pieces[] = {all.subspan(0, cut),
                                           all.subspan(cut)};
  const absl::Status status = ParseFrame(pieces, body);
  if (!status.ok()) return status;
  return frame;
}

// Bit by bit from the definition: reflected polynomial 0x82f63b78.
uint32_t PlainCrc32c(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1u) ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

TEST(Crc32cTest, MatchesThePublishedCheckValue) {
  EXPECT_EQ(ExtendCrc32c(0, "123456789", 9), 0xe3069283u);
}

TEST(Crc32cTest, AgreesWithThePlainDefinitionAtEverySizeAndCut) {
  std::mt19937 random(1);
  for (const size_t size :
       {0, 1, 7, 8, 9, 1023, 1024, 3071, 3072, 3073, 6144, 6151, 10000}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const uint32_t want = PlainCrc32c(bytes);
    EXPECT_EQ(ExtendCrc32c(0, bytes.data(), size), want) << size;
    const size_t cut = size / 3;
    EXPECT_EQ(ExtendCrc32c(ExtendCrc32c(0, bytes.data(), cut),
                           bytes.data() + cut, size - cut),
              want)
        << size;
  }
}

TEST(FrameTest, IsAnOrdinaryProtobufMessage) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128},
                            size_t{20000}, kMaxPayloadBytes}) {
    const std::string payload(size, 'x');
    v1::Frame frame;
    ASSERT_TRUE(frame.ParseFromString(Encode(SomeHeader(), payload))) << size;
    EXPECT_EQ(frame.group(), 0x01020304u);
    EXPECT_EQ(frame.source(), 7u);
    EXPECT_EQ(frame.epoch(), 0x1122334455667788u);
    EXPECT_EQ(frame.sequence(), 42u);
    EXPECT_EQ(frame.op_descriptor(), SomeHeader().op_descriptor);
    EXPECT_EQ(frame.step(), 3u);
    EXPECT_EQ(frame.offset_bytes(), 1u << 20);
    EXPECT_EQ(frame.crc32c(), 0xdeadbeefu);
    EXPECT_EQ(frame.check(), ~uint64_t{0});
    EXPECT_EQ(frame.count(), 7168u);
    EXPECT_EQ(frame.payload(), payload);
  }
}

TEST(FrameTest, ReadsBackWhereverTheMessageIsCut) {
  const std::string payload = "0123456789";
  const std::string bytes = Encode(SomeHeader(), payload);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto frame = Parse(bytes, cut);
    ASSERT_TRUE(frame.ok()) << cut << ": " << frame.status();
    EXPECT_EQ((*frame)->header, SomeHeader()) << cut;
    EXPECT_EQ(Payload(*frame), payload) << cut;
    EXPECT_EQ((*frame)->payload_bytes, payload.size());
  }
}

TEST(FrameTest, PayloadStaysWhereItWasReceived) {
  const std::string message = Encode(SomeHeader(), "payload");
  const absl::Span<const char> piece = message;
  ReceivedFrame frame(new OwnBody);
  ASSERT_TRUE(ParseFrame({piece}, frame.get()).ok());
  ASSERT_EQ(frame->payload.size(), 1u);
  EXPECT_EQ(frame->payload[0].data(), message.data() + kFrameHeaderBytes);
}

TEST(FrameTest, UnderstandsAnyEncodingOfTheMessage) {
  v1::Frame message;  // Skips fields that are zero, and pads no length.
  message.set_source(3);
  message.set_epoch(9);
  message.set_payload("abc");
  const auto frame = Parse(message.SerializeAsString());
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ((*frame)->header, (FrameHeader{.source = 3, .epoch = 9}));
  EXPECT_EQ(Payload(*frame), "abc");

  // The fields in another order, behind one that is unknown.
  const std::string unknown = "\xa0\x06\x01";
  const auto swapped =
      Parse(unknown + std::string("\x7a\x01z\x15\x05\0\0\0", 8));
  ASSERT_TRUE(swapped.ok()) << swapped.status();
  EXPECT_EQ((*swapped)->header.source, 5u);
  EXPECT_EQ(Payload(*swapped), "z");
}

// Whatever one byte is changed to, the reader agrees with protobuf's parser.
TEST(FrameTest, AgreesWithProtobufOnDamagedMessages) {
  const std::string bytes = Encode(SomeHeader(), std::string(200, 'p'));
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    const size_t at = random() % (kFrameHeaderBytes + 8);
    damaged[at] = static_cast<char>(random());
    if (round % 3 == 0) damaged.resize(random() % damaged.size());
    v1::Frame want;
    const bool valid = want.ParseFromString(damaged);
    const auto frame = Parse(damaged, random() % (damaged.size() + 1));
    ASSERT_EQ(frame.ok(), valid) << "byte " << at;
    if (!valid) continue;
    EXPECT_EQ((*frame)->header.epoch, want.epoch());
    EXPECT_EQ((*frame)->header.count, want.count());
    EXPECT_EQ((*frame)->header.crc32c, want.crc32c());
    EXPECT_EQ(Payload(*frame), want.payload());
  }
}

TEST(FrameTest, RefusesWhatIsNoFrame) {
  const auto frame = Parse(std::string(500, '\xff'));
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kDataLoss);
}

TEST(FrameTest, RefusesAnOversizedPayload) {
  v1::Frame message;
  message.set_payload(std::string(kMaxPayloadBytes + 1, 'x'));
  const auto frame = Parse(message.SerializeAsString());
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(frame.status().message(), HasSubstr("1048577"));
}

TEST(FrameTest, ChecksumCoversEveryFieldAndThePayload) {
  FrameHeader header = SomeHeader();
  const std::string payload = "payload";
  header.crc32c = FrameCrc(
      header, ExtendCrc32c(0, payload.data(), payload.size()), payload.size());
  const std::string bytes = Encode(header, payload);
  const auto intact = Parse(bytes);
  ASSERT_TRUE(intact.ok());
  EXPECT_TRUE(CheckCrc(intact->get(), 2).ok());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] ^= 0x10;
    const auto frame = Parse(damaged);
    if (!frame.ok()) continue;  // A tag or a length.
    const absl::Status status = CheckCrc(frame->get(), 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << at;
    EXPECT_THAT(status.message(), HasSubstr("rank 2"));
  }
}

TEST(FrameTest, ChecksumIsOfTheFieldsThenThePayload) {
  const FrameHeader h = SomeHeader();
  const std::string payload(5000, 'y');
  std::string bytes;
  const auto append = [&bytes](const auto& field) {
    bytes.append(reinterpret_cast<const char*>(&field), sizeof(field));
  };
  append(h.group);
  append(h.source);
  append(h.epoch);
  append(h.sequence);
  append(h.op_descriptor);
  append(h.step);
  append(h.offset_bytes);
  append(h.check);
  append(h.count);
  bytes += payload;
  EXPECT_EQ(FrameCrc(h, ExtendCrc32c(0, payload.data(), payload.size()),
                     payload.size()),
            PlainCrc32c(bytes));
}

TEST(FrameTest, DescriptorsAreNamed) {
  EXPECT_EQ(DescriptorName(SomeHeader().op_descriptor),
            "all_reduce (ring, bf16, right)");
  EXPECT_EQ(DescriptorName(0x09090909), "?9 (?9, ?9?9)");
}

}  // namespace
}  // namespace ringfleet::cluster
