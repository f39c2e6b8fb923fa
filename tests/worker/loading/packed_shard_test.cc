// SPDX-License-Identifier: Apache-2.0
#include "worker/loading/packed_shard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/checkpoint_writer.h"

namespace ringfleet::worker {
namespace {

using kernels::WeightForm;
using kernels::WeightMatrix;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr size_t kFilePage = 4096;
constexpr char kShardKey[] = "the key";

absl::Status IgnorePacking(uint64_t, uint64_t) { return absl::OkStatus(); }

// A file of four matrices, one of them empty, one a vector.
class PackedShardTest : public ::testing::Test {
 protected:
  explicit PackedShardTest(size_t large_rows = 3) {
    Add("first", WeightForm::kInt8, 65, 40);
    Add("large", WeightForm::kBf16Rows, large_rows, 1000);
    Add("empty", WeightForm::kInt4, 0, 40);
    Add("vector", WeightForm::kF32Rows, 1, 17);
    const int fd = open(path().c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    const absl::Status status =
        WritePackedShard(fd, kShardKey, parts_, pool_, IgnorePacking);
    close(fd);
    EXPECT_TRUE(status.ok()) << status;
    bytes_ = testing::ReadFile(path());
  }

  std::string path() const { return folder_.File("shard"); }

  void Add(const char* name, WeightForm form, size_t rows, size_t columns) {
    WeightMatrix matrix(form, rows, columns);
    std::vector<float> row(columns);
    for (size_t i = 0; i < rows; ++i) {
      for (float& value : row) {
        value = static_cast<float>(random_() % 1000) - 499.5f;
      }
      matrix.SetRow(i, row.data());
    }
    matrices_.push_back(std::move(matrix));
    const WeightMatrix& kept = matrices_.back();
    parts_.push_back({.name = name,
                      .form = form,
                      .rows = rows,
                      .columns = columns,
                      .data = kept.data(),
                      .bytes = kept.bytes()});
  }

  // Of a file with these bytes, opened and verified.
  absl::Status Check(const std::string& bytes) {
    const std::string damaged = folder_.File("damaged");
    testing::WriteFile(damaged, bytes);
    const auto shard = PackedShard::Open(damaged, kShardKey);
    if (!shard.ok()) return shard.status();
    return (*shard)->Verify(pool_, IgnorePacking);
  }

  // `bytes` with its table replaced and all hashes made right again.
  std::string WithTable(const std::string& table) const {
    uint64_t offset;
    std::memcpy(&offset, bytes_.data() + 24, sizeof(offset));
    std::string bytes = bytes_.substr(0, offset) + table;
    const auto put = [&bytes](size_t at, uint64_t value) {
      std::memcpy(bytes.data() + at, &value, sizeof(value));
    };
    put(16, bytes.size());
    put(32, table.size());
    put(40, XXH3_64bits(table.data(), table.size()));
    put(48, 0);
    put(48, XXH3_64bits(bytes.data(), kFilePage));
    return bytes;
  }

  v1::PackedShardTable Table() const {
    uint64_t offset;
    std::memcpy(&offset, bytes_.data() + 24, sizeof(offset));
    v1::PackedShardTable table;
    EXPECT_TRUE(table.ParseFromString(bytes_.substr(offset)));
    return table;
  }

  std::mt19937_64 random_;
  kernels::ThreadPool pool_{2};
  testing::TempDir folder_;
  std::vector<WeightMatrix> matrices_;
  std::vector<PackedPart> parts_;
  std::string bytes_;
};

// One matrix has several blocks.
class LargePackedShardTest : public PackedShardTest {
 protected:
  LargePackedShardTest() : PackedShardTest(700) {}
};

TEST_F(LargePackedShardTest, GivesBackEveryByte) {
  ASSERT_GT(bytes_.size(), 1'400'000u);
  const auto shard = PackedShard::Open(path(), kShardKey);
  ASSERT_TRUE(shard.ok()) << shard.status();
  ASSERT_TRUE((*shard)->Verify(pool_, IgnorePacking).ok());
  ASSERT_EQ((*shard)->size(), parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const PackedPart& part = parts_[i];
    const auto matrix =
        (*shard)->Matrix(i, part.name, part.form, part.rows, part.columns);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(std::string(matrix->data(), matrix->bytes()),
              std::string(part.data, part.bytes))
        << part.name;
  }
}

TEST_F(PackedShardTest, MatricesOutliveTheFileAndItsName) {
  auto shard = PackedShard::Open(path(), kShardKey);
  ASSERT_TRUE(shard.ok()) << shard.status();
  const auto matrix = (*shard)->Matrix(0, "first", WeightForm::kInt8, 65, 40);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  shard = absl::UnknownError("gone");
  unlink(path().c_str());
  EXPECT_EQ(std::string(matrix->data(), matrix->bytes()),
            std::string(parts_[0].data, parts_[0].bytes));
}

TEST_F(PackedShardTest, AnotherMatrixThanWantedIsDataLoss) {
  const auto shard = PackedShard::Open(path(), kShardKey);
  ASSERT_TRUE(shard.ok()) << shard.status();
  for (const absl::Status& status :
       {(*shard)->Matrix(0, "second", WeightForm::kInt8, 65, 40).status(),
        (*shard)->Matrix(0, "first", WeightForm::kInt4, 65, 40).status(),
        (*shard)->Matrix(0, "first", WeightForm::kInt8, 66, 40).status(),
        (*shard)->Matrix(0, "first", WeightForm::kInt8, 65, 41).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("want"));
  }
}

TEST_F(PackedShardTest, AnotherKeyIsRefused) {
  const absl::Status status = PackedShard::Open(path(), "another").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("packed for the key, want another"));
}

TEST_F(PackedShardTest, AFlippedByteAnywhereIsFound) {
  for (size_t place = 0; place < bytes_.size();
       place += place < 64 || place + 300 > bytes_.size() ? 1 : 61) {
    std::string damaged = bytes_;
    damaged[place] = static_cast<char>(damaged[place] ^ (1 << random_() % 8));
    const absl::Status status = Check(damaged);
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss)
        << "byte " << place << ": " << status;
  }
}

TEST_F(LargePackedShardTest, DamageIsNamedWithItsBlock) {
  const size_t second_block = 3 * kFilePage + (1 << 20);
  bytes_[second_block + 100] ^= 1;
  EXPECT_THAT(std::string(Check(bytes_).message()),
              HasSubstr(absl::StrCat("large, bytes [", second_block, ", ")));
}

TEST_F(PackedShardTest, AFileCutAnywhereIsDataLoss) {
  for (int i = 0; i < 60; ++i) {
    const size_t size = i < 3 ? i : random_() % bytes_.size();
    const absl::Status status = Check(bytes_.substr(0, size));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(Check(bytes_ + "x").code(), absl::StatusCode::kDataLoss);
}

// Whatever a table says, with every hash right: no crash, no read beyond.
TEST_F(PackedShardTest, ATableThatLiesIsDataLoss) {
  ASSERT_TRUE(Check(WithTable(Table().SerializeAsString())).ok());
  const uint64_t numbers[] = {
      0, 1, 41, 1 << 20, uint64_t{1} << 40, ~0ull, ~0ull - 4094};
  for (int i = 0; i < 300; ++i) {
    v1::PackedShardTable table = Table();
    v1::PackedMatrix* matrix =
        table.mutable_matrices(static_cast<int>(random_() % 4));
    const uint64_t number = numbers[random_() % 7];
    bool same = false;
    switch (random_() % 7) {
      case 0:
        same = matrix->rows() == number || matrix->bytes() == 0;
        matrix->set_rows(number);
        break;
      case 1:
        same = matrix->columns() == number || matrix->rows() == 0;
        matrix->set_columns(number);
        break;
      case 2:
        same = matrix->bytes() == number;
        matrix->set_bytes(number);
        break;
      case 3:
        matrix->add_hashes(number);
        break;
      case 4:
        same = matrix->bytes() == 0;
        matrix->set_form("int3");
        if (same) matrix->set_form("f32");
        break;
      case 5:
        table.mutable_matrices()->DeleteSubrange(0, 1);
        break;
      case 6:
        table.set_block_bytes(number);
        same = number == 1 << 20;
        break;
    }
    const absl::Status status = Check(WithTable(table.SerializeAsString()));
    if (same) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss)
        << i << ": " << table.ShortDebugString();
  }
  for (int i = 0; i < 200; ++i) {  // Not even a table.
    std::string table = Table().SerializeAsString();
    for (int flips = 0; flips < 3; ++flips) {
      table[random_() % table.size()] = static_cast<char>(random_());
    }
    EXPECT_THAT(Check(WithTable(table)).code(),
                AnyOf(absl::StatusCode::kOk, absl::StatusCode::kDataLoss,
                      absl::StatusCode::kFailedPrecondition));
  }
}

TEST_F(PackedShardTest, WhatIsNoFileIsAnError) {
  EXPECT_EQ(PackedShard::Open(folder_.File("none"), kShardKey).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(PackedShard::Open(folder_.path(), kShardKey).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ringfleet::worker
