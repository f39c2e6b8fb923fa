// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/shared_segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ringfleet::cluster {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 3;

class SharedSegmentTest : public ::testing::Test {
 protected:
  SharedSegmentTest() : own_(*SharedSegment::Create(4, 0, kWorld)) {}

  absl::Status OpenStatus(const std::string& offer) {
    return SharedSegment::Open(offer, 4, 0, 1, kWorld).status();
  }
  // The offer with one of its four parts replaced.
  std::string OfferWith(int part, const std::string& text) {
    std::vector<std::string> parts = absl::StrSplit(own_.offer(), '/');
    parts[part] = text;
    return absl::StrCat(parts[0], "/", parts[1], "/", parts[2], "/", parts[3]);
  }

  SharedSegment own_;
};

TEST_F(SharedSegmentTest, APeerWritesWhatTheOwnerReads) {
  for (int self = 1; self < kWorld; ++self) {
    auto peer = SharedSegment::Open(own_.offer(), 4, 0, self, kWorld);
    ASSERT_TRUE(peer.ok()) << peer.status();
    for (const Lane lane : {Lane::kDirect, Lane::kRight, Lane::kLeft}) {
      RingWriter writer(peer->Ring(self, lane));
      const std::string text = absl::StrCat(self, "/", static_cast<int>(lane));
      writer.Write(text.data(), text.size());
      writer.Publish();
      RingReader reader(own_.Ring(self, lane));
      ASSERT_EQ(reader.Available(), text.size());
      std::string read(text.size(), '\0');
      reader.Read(read.data(), read.size());
      EXPECT_EQ(read, text);
    }
  }
}

TEST_F(SharedSegmentTest, OutlivesItsOwnerInAPeer) {
  auto peer = SharedSegment::Open(own_.offer(), 4, 0, 1, kWorld);
  ASSERT_TRUE(peer.ok());
  own_ = SharedSegment();
  RingWriter writer(peer->Ring(1, Lane::kLeft));
  const std::string bytes(kSharedRingBytes, 'x');
  EXPECT_EQ(writer.Write(bytes.data(), bytes.size()), bytes.size());
  peer->RingDoorbell();
}

TEST_F(SharedSegmentTest, OfAnotherMachineIsUnavailable) {
  EXPECT_EQ(OpenStatus(OfferWith(0, "00000000-0000")).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(SharedSegmentTest, ThatHasGoneIsUnavailable) {
  const std::string offer = own_.offer();
  own_ = SharedSegment();
  EXPECT_EQ(OpenStatus(offer).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SharedSegmentTest, WhatIsNotTheOfferedSegmentIsRefused) {
  std::vector<std::string> parts = absl::StrSplit(own_.offer(), '/');
  std::string nonce = parts[3];
  nonce[0] = nonce[0] == '0' ? '1' : '0';
  const absl::Status status = OpenStatus(OfferWith(3, nonce));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("not the segment of rank 0 in epoch 4"));
  EXPECT_FALSE(SharedSegment::Open(own_.offer(), 5, 0, 1, kWorld).ok());
  EXPECT_FALSE(SharedSegment::Open(own_.offer(), 4, 2, 1, kWorld).ok());
  EXPECT_FALSE(SharedSegment::Open(own_.offer(), 4, 0, 1, kWorld + 1).ok());
}

// A peer could name any file of this user: one that it may shrink under us,
// one that is not memory at all.
TEST_F(SharedSegmentTest, OtherFilesAreRefused) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  auto own = SharedSegment::Create(4, 0, kWorld);
  ASSERT_TRUE(own.ok());
  std::vector<std::string> parts = absl::StrSplit(own->offer(), '/');
  const off_t size = lseek(std::stoi(parts[2]), 0, SEEK_END);
  ASSERT_GT(size, 0);
  ASSERT_EQ(ftruncate(unsealed, size), 0);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int text = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  for (const int fd : {unsealed, pipes[0], pipes[1], null, text}) {
    EXPECT_FALSE(OpenStatus(OfferWith(2, absl::StrCat(fd))).ok()) << fd;
    close(fd);
  }
}

TEST_F(SharedSegmentTest, AMalformedOfferIsInvalid) {
  for (const std::string& offer :
       {std::string(), std::string("///"), std::string("a/b/c/d"),
        OfferWith(1, "-1"), OfferWith(1, "1/2"), OfferWith(2, "../maps"),
        OfferWith(2, "-1"), OfferWith(3, "12"), OfferWith(3, ""),
        OfferWith(3, std::string(32, 'g')), own_.offer() + "/x"}) {
    EXPECT_EQ(OpenStatus(offer).code(), absl::StatusCode::kInvalidArgument)
        << offer;
  }
}

TEST_F(SharedSegmentTest, ARingWakesTheSleeper) {
  auto peer = SharedSegment::Open(own_.offer(), 4, 0, 1, kWorld);
  ASSERT_TRUE(peer.ok());
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> rung{false};
    std::thread other([&] {
      rung = true;
      peer->RingDoorbell();
    });
    // Were one ring missed, this would take an hour.
    own_.Sleep(absl::Hours(1), [&] { return !rung.load(); });
    EXPECT_TRUE(rung);
    other.join();
  }
}

TEST_F(SharedSegmentTest, SleepEndsByItself) {
  own_.Sleep(absl::Milliseconds(1), [] { return true; });
  own_.Sleep(absl::Hours(1), [] { return false; });
}

}  // namespace
}  // namespace ringfleet::cluster
