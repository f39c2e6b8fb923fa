// SPDX-License-Identifier: Apache-2.0
#include "cluster/all_reduce.h"

#include <cstring>

#include "cluster/all_gather.h"
#include "cluster/reduce_scatter.h"
#include "cluster/status_macros.h"
#include "kernels/dtype.h"

namespace ringfleet::cluster {
namespace {

// The two element types of a wire: bytes of any alignment to float and back.
struct F32Wire {
  static constexpr size_t kBytes = 4;
  static float Load(const char* bytes) {
    float value;
    std::memcpy(&value, bytes, kBytes);
    return value;
  }
  static void Store(float value, char* bytes) {
    std::memcpy(bytes, &value, kBytes);
  }
};

struct Bf16Wire {
  static constexpr size_t kBytes = 2;
  static float Load(const char* bytes) {
    uint16_t bits;
    std::memcpy(&bits, bytes, kBytes);
    return kernels::Bf16ToFloat(bits);
  }
  static void Store(float value, char* bytes) {
    const uint16_t bits = kernels::FloatToBf16(value);
    std::memcpy(bytes, &bits, kBytes);
  }
};

template <typename W>
void Encode(absl::Span<const float> values, char* bytes) {
  for (size_t i = 0; i < values.size(); ++i) {
    W::Store(values[i], bytes + i * W::kBytes);
  }
}

template <typename W>
void Decode(const char* bytes, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] = W::Load(bytes + i * W::kBytes);
}

template <typename W>
void Add(const char* bytes, size_t count, float* sum) {
  for (size_t i = 0; i < count; ++i) sum[i] += W::Load(bytes + i * W::kBytes);
}

template <typename W>
absl::Status OneShot(Exchange& exchange, absl::Span<float> data,
                     std::vector<char>& sent) {
  sent.resize(data.size() * W::kBytes);
  Encode<W>(data, sent.data());
  RF_RETURN_IF_ERROR(exchange.SendToOthers(0, sent));
  for (int from = 0; from < exchange.size(); ++from) {
    const auto accumulate = [&](const char* elements, size_t count,
                                float* sum) {
      if (from == 0) {
        Decode<W>(elements, count, sum);
      } else {
        Add<W>(elements, count, sum);
      }
    };
    if (from == exchange.rank()) {
      accumulate(sent.data(), data.size(), data.data());
      continue;
    }
    float* sum = data.data();
    ElementReader<W::kBytes> reader;
    RF_RETURN_IF_ERROR(exchange.Receive(
        from, 0, data.size() * W::kBytes, [&](absl::Span<const char> piece) {
          reader.Feed(piece, [&](const char* elements, size_t count) {
            accumulate(elements, count, sum);
            sum += count;
          });
        }));
  }
  return exchange.Flush();
}

}  // namespace

absl::Status OneShotAllReduce(Exchange& exchange, absl::Span<float> data,
                              Wire wire, ReduceScratch& scratch) {
  if (wire == Wire::kF32) return OneShot<F32Wire>(exchange, data, scratch.wire);
  RF_RETURN_IF_ERROR(OneShot<Bf16Wire>(exchange, data, scratch.wire));
  for (float& value : data) value = kernels::RoundToBf16(value);
  return absl::OkStatus();
}

absl::Status RingAllReduce(Exchange& exchange, absl::Span<float> data,
                           Wire wire, ReduceScratch& scratch) {
  const size_t size = static_cast<size_t>(exchange.size());
  std::vector<uint64_t>& offsets = scratch.offsets;
  offsets.resize(size + 1);
  for (size_t r = 0; r <= size; ++r) offsets[r] = data.size() * r / size;
  RF_RETURN_IF_ERROR(RingReduceScatter(exchange, data, offsets));

  // From here on offsets count bytes of the wire.
  const uint32_t step = static_cast<uint32_t>(exchange.size() - 1);
  const size_t own = offsets[exchange.rank()];
  const auto segment = data.subspan(own, offsets[exchange.rank() + 1] - own);
  if (wire == Wire::kF32) {
    for (uint64_t& offset : offsets) offset *= F32Wire::kBytes;
    return RingAllGather(
        exchange,
        {reinterpret_cast<char*>(data.data()), data.size() * F32Wire::kBytes},
        offsets, step);
  }
  for (uint64_t& offset : offsets) offset *= Bf16Wire::kBytes;
  scratch.wire.resize(data.size() * Bf16Wire::kBytes);
  Encode<Bf16Wire>(segment, scratch.wire.data() + own * Bf16Wire::kBytes);
  RF_RETURN_IF_ERROR(
      RingAllGather(exchange, absl::MakeSpan(scratch.wire), offsets, step));
  Decode<Bf16Wire>(scratch.wire.data(), data.size(), data.data());
  return absl::OkStatus();
}

}  // namespace ringfleet::cluster
