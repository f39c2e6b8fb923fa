// SPDX-License-Identifier: Apache-2.0
#include "kernels/xxh3.h"

#include <xxhash.h>

#include <string>

#include "gtest/gtest.h"

namespace ringfleet::kernels {
namespace {

// Shards that are kept, and tools that look at them, know the library's hash.
TEST(Xxh3Test, IsTheLibrarysHash) {
  std::string bytes(300000, 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  }
  for (const size_t size :
       {0, 1, 3, 8, 16, 17, 128, 129, 240, 241, 1024, 4096, 65537, 299990}) {
    for (const size_t first : {0, 1, 7}) {
      EXPECT_EQ(Xxh3(bytes.data() + first, size),
                XXH3_64bits(bytes.data() + first, size))
          << size << " bytes from " << first;
    }
  }
}

}  // namespace
}  // namespace ringfleet::kernels
