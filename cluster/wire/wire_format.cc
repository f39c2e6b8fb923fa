// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/wire_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/check.h"
#include "kernels/reduce.h"

namespace ringfleet::cluster {
namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are copied to and from the wire as they lie in memory");

constexpr size_t kGroup = kernels::kInt8GroupElements;
constexpr size_t kScaleBytes = sizeof(float);
// Elements between two borders of f32 and bf16.
constexpr size_t kBorderElements = 32;
// More elements than memory holds, and few enough to count their bytes.
constexpr size_t kEndlessRow = size_t{1} << 56;

// Bytes of one f32 or bf16 element, or of one int8 code.
size_t ElementBytes(Wire wire) {
  switch (wire) {
    case Wire::kF32:
      return 4;
    case Wire::kBf16:
      return 2;
    case Wire::kInt8:
      return 1;
  }
  RF_CHECK(false);
}

// A position within pieces.
class PieceReader {
 public:
  explicit PieceReader(WireFormat::Pieces pieces) : rest_(pieces) {}

  // The bytes that lie side by side from here on; not empty before the end.
  absl::Span<const char> Run() {
    while (run_.empty() && !rest_.empty()) {
      run_ = rest_.front();
      rest_.remove_prefix(1);
    }
    return run_;
  }

  // Advances within Run().
  void Consume(size_t bytes) { run_.remove_prefix(bytes); }

  void Skip(size_t bytes) {
    while (bytes > 0) {
      const size_t here = std::min(bytes, Run().size());
      RF_CHECK(here > 0);
      Consume(here);
      bytes -= here;
    }
  }

  // Copies the next bytes together, wherever they lie.
  void Copy(size_t bytes, char* out) {
    while (bytes > 0) {
      const size_t here = std::min(bytes, Run().size());
      RF_CHECK(here > 0);
      std::memcpy(out, run_.data(), here);
      Consume(here);
      out += here;
      bytes -= here;
    }
  }

 private:
  absl::Span<const char> run_;
  WireFormat::Pieces rest_;
};

// Passes `count` elements on to consume(bytes, count, base, target): whole ones
// where they lie, one that straddles pieces from a copy.
template <size_t kBytes, typename Consumer>
void ReadElements(PieceReader& reader, size_t count, const float* base,
                  float* target, Consumer consume) {
  while (count > 0) {
    const absl::Span<const char> run = reader.Run();
    const size_t whole = std::min(run.size() / kBytes, count);
    if (whole > 0) {
      consume(run.data(), whole, base, target);
      reader.Consume(whole * kBytes);
      base += whole;
      target += whole;
      count -= whole;
    } else {
      char element[kBytes];
      reader.Copy(kBytes, element);
      consume(element, size_t{1}, base, target);
      ++base;
      ++target;
      --count;
    }
  }
}

}  // namespace

WireFormat::WireFormat(Wire wire, size_t row_elements)
    : wire_(wire),
      row_elements_(row_elements > 0 ? row_elements : kEndlessRow),
      row_groups_((row_elements_ + kGroup - 1) / kGroup) {}

size_t WireFormat::GroupsBefore(size_t element) const {
  const size_t column = element % row_elements_;
  return element / row_elements_ * row_groups_ + (column + kGroup - 1) / kGroup;
}

size_t WireFormat::EncodedBytes(size_t begin, size_t end) const {
  const size_t bytes = (end - begin) * ElementBytes(wire_);
  if (wire_ != Wire::kInt8) return bytes;
  return bytes + (GroupsBefore(end) - GroupsBefore(begin)) * kScaleBytes;
}

size_t WireFormat::MaxElementBytes() const {
  const size_t bytes = ElementBytes(wire_);
  if (wire_ != Wire::kInt8) return bytes;
  return bytes + (kScaleBytes + row_elements_ - 1) / row_elements_;
}

size_t WireFormat::FloorToBorder(size_t element) const {
  if (wire_ != Wire::kInt8) return element - element % kBorderElements;
  return element - element % row_elements_ % kGroup;
}

template <typename Visit>
void WireFormat::ForEachGroup(size_t begin, size_t end, Visit visit) const {
  size_t column = begin % row_elements_;
  while (begin < end) {
    const size_t size = std::min({kGroup, row_elements_ - column, end - begin});
    visit(size);
    begin += size;
    column += size;
    if (column == row_elements_) column = 0;
  }
}

void WireFormat::Encode(const float* values, size_t begin, size_t end,
                        char* out) const {
  const size_t count = end - begin;
  if (count == 0) return;
  switch (wire_) {
    case Wire::kF32:
      std::memcpy(out, values, count * sizeof(float));
      return;
    case Wire::kBf16:
      kernels::EncodeBf16(values, count, out);
      return;
    case Wire::kInt8:
      break;
  }
  char* scales = out + count;
  ForEachGroup(begin, end, [&](size_t size) {
    const float scale = kernels::EncodeInt8Group(values, size, out);
    std::memcpy(scales, &scale, kScaleBytes);
    values += size;
    out += size;
    scales += kScaleBytes;
  });
}

struct WireFormat::Sink {
  void (*f32)(const char* bytes, size_t count, const float* base,
              float* target);
  void (*bf16)(const char* bytes, size_t count, const float* base,
               float* target);
  void (*int8)(const char* codes, size_t count, float scale, const float* base,
               float* target);
};

void WireFormat::ReadFrame(const Sink& sink, Pieces pieces, size_t begin,
                           size_t end, const float* base, float* target) const {
  size_t bytes = 0;
  for (const absl::Span<const char> piece : pieces) bytes += piece.size();
  RF_CHECK(bytes == EncodedBytes(begin, end));
  PieceReader reader(pieces);
  switch (wire_) {
    case Wire::kF32:
      return ReadElements<4>(reader, end - begin, base, target, sink.f32);
    case Wire::kBf16:
      return ReadElements<2>(reader, end - begin, base, target, sink.bf16);
    case Wire::kInt8:
      break;
  }
  // Codes and scales lie apart: two positions advance, a group at a time.
  PieceReader scales(pieces);
  scales.Skip(end - begin);
  ForEachGroup(begin, end, [&](size_t size) {
    float scale;
    scales.Copy(kScaleBytes, reinterpret_cast<char*>(&scale));
    ReadElements<1>(reader, size, base, target,
                    [&sink, scale](const char* codes, size_t count,
                                   const float* from, float* to) {
                      sink.int8(codes, count, scale, from, to);
                    });
    base += size;
    target += size;
  });
}

void WireFormat::Decode(Pieces pieces, size_t begin, size_t end,
                        float* out) const {
  static constexpr Sink kAssign = {
      [](const char* bytes, size_t count, const float*, float* to) {
        std::memcpy(to, bytes, count * sizeof(float));
      },
      [](const char* bytes, size_t count, const float*, float* to) {
        kernels::DecodeBf16(bytes, count, to);
      },
      [](const char* codes, size_t count, float scale, const float*,
         float* to) { kernels::DecodeInt8Group(codes, count, scale, to); }};
  ReadFrame(kAssign, pieces, begin, end, out, out);
}

void WireFormat::Round(size_t begin, size_t end, float* values) const {
  if (IdentityBytes()) return;
  char encoded[kGroup * sizeof(float)];
  if (wire_ == Wire::kBf16) {
    for (; begin < end; begin += kGroup, values += kGroup) {
      const size_t size = std::min(kGroup, end - begin);
      kernels::EncodeBf16(values, size, encoded);
      kernels::DecodeBf16(encoded, size, values);
    }
    return;
  }
  ForEachGroup(begin, end, [&](size_t size) {
    const float scale = kernels::EncodeInt8Group(values, size, encoded);
    kernels::DecodeInt8Group(encoded, size, scale, values);
    values += size;
  });
}

void WireFormat::Accumulate(Pieces pieces, size_t begin, size_t end,
                            const float* base, float* sum) const {
  static constexpr Sink kAdd = {kernels::AddF32, kernels::AddBf16,
                                kernels::AddInt8Group};
  ReadFrame(kAdd, pieces, begin, end, base, sum);
}

}  // namespace ringfleet::cluster
