// SPDX-License-Identifier: Apache-2.0
// Speed of what touches every element between ranks: conversion, summation and
// checksums. Arguments are elements: one token of DeepSeek-V3 (hidden size
// 7168: 28 KB of float32) and 2^20 (4 MiB, beyond the second-level cache).
//
// bytes_per_second counts what is read and written: the float side once for
// encoding and decoding, twice for adding, and the wire side once. Wire bytes
// start at an odd address, as they do in a received message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "cluster/wire/crc32c.h"
#include "cluster/wire/wire_format.h"
#include "kernels/reduce.h"

namespace ringfleet {
namespace {

constexpr size_t kGroup = kernels::kInt8GroupElements;

class Vectors {
 public:
  explicit Vectors(const benchmark::State& state)
      : count(static_cast<size_t>(state.range(0))),
        floats(count),
        storage(count * 4 + 1) {
    for (size_t i = 0; i < count; ++i) {
      floats[i] = static_cast<float>(i % 251) - 125;
    }
  }
  char* wire() { return storage.data() + 1; }

  const size_t count;
  std::vector<float> floats;
  std::vector<char> storage;
};

// Runs `body` on the vectors, which moves `bytes` for every element.
template <typename Body>
void Measure(benchmark::State& state, double bytes, const Body& body) {
  Vectors vectors(state);
  for (auto _ : state) {
    body(vectors);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(
      static_cast<int64_t>(static_cast<double>(state.iterations()) * bytes *
                           static_cast<double>(vectors.count)));
}

void AddF32(benchmark::State& state) {
  Measure(state, 12, [](Vectors& v) {
    kernels::AddF32(v.wire(), v.count, v.floats.data(), v.floats.data());
  });
}

void EncodeBf16(benchmark::State& state) {
  Measure(state, 6, [](Vectors& v) {
    kernels::EncodeBf16(v.floats.data(), v.count, v.wire());
  });
}

void DecodeBf16(benchmark::State& state) {
  Measure(state, 6, [](Vectors& v) {
    kernels::DecodeBf16(v.wire(), v.count, v.floats.data());
  });
}

void AddBf16(benchmark::State& state) {
  Measure(state, 10, [](Vectors& v) {
    kernels::AddBf16(v.wire(), v.count, v.floats.data(), v.floats.data());
  });
}

void EncodeInt8(benchmark::State& state) {
  Measure(state, 5, [](Vectors& v) {
    for (size_t i = 0; i + kGroup <= v.count; i += kGroup) {
      benchmark::DoNotOptimize(
          kernels::EncodeInt8Group(v.floats.data() + i, kGroup, v.wire() + i));
    }
  });
}

void DecodeInt8(benchmark::State& state) {
  Measure(state, 5, [](Vectors& v) {
    for (size_t i = 0; i + kGroup <= v.count; i += kGroup) {
      kernels::DecodeInt8Group(v.wire() + i, kGroup, 0.5f, v.floats.data() + i);
    }
  });
}

void AddInt8(benchmark::State& state) {
  Measure(state, 9, [](Vectors& v) {
    for (size_t i = 0; i + kGroup <= v.count; i += kGroup) {
      float* const sum = v.floats.data() + i;
      kernels::AddInt8Group(v.wire() + i, kGroup, 0.5f, sum, sum);
    }
  });
}

// A frame as gRPC hands it over: slices of 8 KB, which elements straddle.
template <cluster::Wire kWire>
void AccumulateFrame(benchmark::State& state) {
  Vectors v(state);
  const cluster::WireFormat format(kWire, 7168);
  const size_t bytes = format.EncodedBytes(0, v.count);
  v.storage.resize(1 + bytes);
  format.Encode(v.floats.data(), 0, v.count, v.wire());
  std::vector<absl::Span<const char>> pieces;
  for (size_t at = 0; at < bytes; at += 8187) {
    pieces.emplace_back(v.wire() + at, std::min<size_t>(8187, bytes - at));
  }
  for (auto _ : state) {
    format.Accumulate(pieces, 0, v.count, v.floats.data(), v.floats.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(bytes + 8 * v.count));
}

void Crc32c(benchmark::State& state) {
  Measure(state, 4, [](Vectors& v) {
    benchmark::DoNotOptimize(cluster::ExtendCrc32c(0, v.wire(), v.count * 4));
  });
}

// Arguments are bytes, and only their digits matter.
void CombineCrc32c(benchmark::State& state) {
  uint32_t crc = 1;
  for (auto _ : state) {
    crc = cluster::CombineCrc32c(crc, 0x12345678u,
                                 static_cast<size_t>(state.range(0)));
    benchmark::DoNotOptimize(crc);
  }
}

BENCHMARK(AddF32)->Arg(7168)->Arg(1 << 20);
BENCHMARK(EncodeBf16)->Arg(7168)->Arg(1 << 20);
BENCHMARK(DecodeBf16)->Arg(7168)->Arg(1 << 20);
BENCHMARK(AddBf16)->Arg(7168)->Arg(1 << 20);
BENCHMARK(EncodeInt8)->Arg(7168)->Arg(1 << 20);
BENCHMARK(DecodeInt8)->Arg(7168)->Arg(1 << 20);
BENCHMARK(AddInt8)->Arg(7168)->Arg(1 << 20);
BENCHMARK(AccumulateFrame<cluster::Wire::kF32>)->Arg(7168)->Arg(1 << 18);
BENCHMARK(AccumulateFrame<cluster::Wire::kBf16>)->Arg(7168)->Arg(1 << 19);
BENCHMARK(AccumulateFrame<cluster::Wire::kInt8>)->Arg(7168)->Arg(1 << 20);
// 64 B, 1 KB, 7 KB, 14 KB, 28 KB, 256 KB, 1 MiB, 4 MiB; 128 MiB come from
// memory.
BENCHMARK(Crc32c)->Arg(16)->Arg(256)->Arg(1792)->Arg(3584)->Arg(7168);
BENCHMARK(Crc32c)->Arg(1 << 16)->Arg(1 << 18)->Arg(1 << 20)->Arg(1 << 25);
BENCHMARK(CombineCrc32c)->Arg(7392)->Arg(28672)->Arg(1048575)->Arg(1 << 20);

}  // namespace
}  // namespace ringfleet
