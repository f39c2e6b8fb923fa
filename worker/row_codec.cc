// SPDX-License-Identifier: Apache-2.0
#include "worker/row_codec.h"

#include <cstring>

#include "absl/types/span.h"

namespace ringfleet::worker {
namespace {

using kernels::Activations;

size_t CodeBytes(size_t columns) {
  const size_t groups =
      (columns + kernels::kActivationGroup - 1) / kernels::kActivationGroup;
  return columns + groups * sizeof(float);
}

void DecodeFloats(const cluster::WireFormat& format, const char* bytes,
                  size_t size, size_t count, float* out) {
  const absl::Span<const char> piece(bytes, size);
  format.Decode({&piece, 1}, 0, count, out);
}

}  // namespace

RowCodec::RowCodec(Activations::Form form, size_t columns, size_t attached,
                   cluster::Wire wire)
    : form_(form),
      columns_(columns),
      attached_(attached),
      values_format_(wire, columns),
      attached_format_(wire, attached),
      product_bytes_(form == Activations::Form::kInt8
                         ? CodeBytes(columns)
                         : values_format_.EncodedBytes(0, columns)),
      attached_bytes_(attached_format_.EncodedBytes(0, attached)) {}

void RowCodec::Encode(const Activations& x, size_t row, const float* values,
                      const float* attached, char* out) const {
  if (form_ == Activations::Form::kF32) {
    values_format_.Encode(values, 0, columns_, out);
  } else if (columns_ > 0) {
    std::memcpy(out, x.Codes(row), columns_);
    std::memcpy(out + columns_, x.Scales(row), product_bytes_ - columns_);
  }
  if (attached_ > 0) {
    attached_format_.Encode(attached, 0, attached_, out + product_bytes_);
  }
}

void RowCodec::Decode(const char* bytes, Activations& x, size_t row,
                      float* values, float* attached) const {
  if (form_ == Activations::Form::kF32) {
    DecodeFloats(values_format_, bytes, product_bytes_, columns_, values);
  } else {
    x.SetCodes(row, bytes, bytes + columns_);
  }
  if (attached_ > 0) {
    DecodeFloats(attached_format_, bytes + product_bytes_, attached_bytes_,
                 attached_, attached);
  }
}

}  // namespace ringfleet::worker
