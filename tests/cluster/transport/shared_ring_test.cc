// SPDX-License-Identifier: Apache-2.0
#include "cluster/transport/shared_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace ringfleet::cluster {
namespace {

class SharedRingTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 256;

  RingControl control_ = {};
  std::vector<char> data_ = std::vector<char>(kSize);
  SharedRing ring_ = {
      .control = &control_, .data = data_.data(), .size = kSize};
  RingWriter writer_{ring_};
  RingReader reader_{ring_};

  std::string ReadAll() {
    std::string bytes(reader_.Available(), '\0');
    reader_.Read(bytes.data(), bytes.size());
    return bytes;
  }
};

TEST_F(SharedRingTest, BytesComeOutAsTheyWentInWhateverTheSizes) {
  constexpr size_t kBytes = 1 << 20;
  const auto byte = [](size_t i) { return static_cast<char>(i * 7 + i / 256); };
  std::thread writing([&] {
    std::mt19937 random(1);
    std::vector<char> bytes(3 * kSize);
    size_t written = 0;
    while (written < kBytes) {
      const size_t size =
          std::min(1 + random() % bytes.size(), kBytes - written);
      for (size_t i = 0; i < size; ++i) bytes[i] = byte(written + i);
      for (size_t done = 0; done < size;) {
        done += writer_.Write(bytes.data() + done, size - done);
        writer_.Publish();
        if (done < size) std::this_thread::yield();
      }
      written += size;
    }
  });
  std::mt19937 random(2);
  size_t read = 0;
  std::vector<char> bytes(kSize);
  while (read < kBytes) {
    const size_t available = reader_.Available();
    ASSERT_LE(available, kSize);
    if (available == 0) {
      std::this_thread::yield();
      continue;
    }
    const size_t size = 1 + random() % available;
    reader_.Read(bytes.data(), size);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(bytes[i], byte(read + i));
    read += size;
    reader_.Release(reader_.position());
  }
  writing.join();
  EXPECT_EQ(reader_.Available(), 0u);
}

TEST_F(SharedRingTest, NothingIsSeenBeforeItIsPublished) {
  EXPECT_EQ(writer_.Write("abc", 3), 3u);
  EXPECT_EQ(reader_.Available(), 0u);
  writer_.Publish();
  EXPECT_EQ(ReadAll(), "abc");
}

TEST_F(SharedRingTest, AFullRingTellsOfRoomOnce) {
  const std::string bytes(kSize + 10, 'x');
  EXPECT_EQ(writer_.Write(bytes.data(), bytes.size()), kSize);
  writer_.Publish();
  EXPECT_EQ(writer_.Write(bytes.data(), 1), 0u);
  EXPECT_TRUE(writer_.WaitForRoom());
  EXPECT_EQ(ReadAll().size(), kSize);
  EXPECT_TRUE(reader_.Release(reader_.position()));
  EXPECT_FALSE(reader_.Release(reader_.position()));
  EXPECT_EQ(writer_.Write(bytes.data(), 10), 10u);
}

TEST_F(SharedRingTest, RoomThatCameInTheMeantimeIsNotWaitedFor) {
  const std::string bytes(kSize, 'x');
  writer_.Write(bytes.data(), bytes.size());
  writer_.Publish();
  EXPECT_EQ(writer_.Write(bytes.data(), 1), 0u);
  ReadAll();
  reader_.Release(reader_.position());
  EXPECT_FALSE(writer_.WaitForRoom());
}

TEST_F(SharedRingTest, AnImpossibleHeadIsCorruptForGood) {
  for (const uint64_t head : {uint64_t{kSize + 1}, ~uint64_t{0}}) {
    RingReader reader(ring_);
    control_.head = head;
    EXPECT_EQ(reader.Available(), 0u);
    EXPECT_TRUE(reader.corrupt());
    control_.head = 5;
    EXPECT_EQ(reader.Available(), 0u);
  }
}

TEST_F(SharedRingTest, AnImpossibleTailIsCorruptForGood) {
  const std::string bytes(kSize, 'x');
  for (const uint64_t tail : {uint64_t{kSize + 1}, ~uint64_t{0}}) {
    control_.tail = 0;
    RingWriter writer(ring_);
    writer.Write(bytes.data(), bytes.size());
    control_.tail = tail;
    EXPECT_EQ(writer.Write(bytes.data(), 1), 0u);
    EXPECT_TRUE(writer.corrupt());
    control_.tail = 1;
    EXPECT_EQ(writer.Write(bytes.data(), 1), 0u);
  }
  control_.tail = 0;
  RingWriter writer(ring_);
  writer.Write(bytes.data(), bytes.size());
  control_.tail = 100;
  EXPECT_EQ(writer.Write(bytes.data(), 150), 100u);
  control_.tail = 99;  // Back.
  EXPECT_EQ(writer.Write(bytes.data(), 1), 0u);
  EXPECT_TRUE(writer.corrupt());
}

}  // namespace
}  // namespace ringfleet::cluster
