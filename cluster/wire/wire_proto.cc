// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/wire_proto.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::cluster {

v1::WireDtype WireToProto(Wire wire) {
  switch (wire) {
    case Wire::kF32:
      return v1::WIRE_DTYPE_F32;
    case Wire::kBf16:
      return v1::WIRE_DTYPE_BF16;
    case Wire::kInt8:
      return v1::WIRE_DTYPE_INT8;
  }
  RF_CHECK(false);
}

absl::StatusOr<Wire> WireFromProto(v1::WireDtype wire) {
  switch (wire) {
    case v1::WIRE_DTYPE_F32:
      return Wire::kF32;
    case v1::WIRE_DTYPE_BF16:
      return Wire::kBf16;
    case v1::WIRE_DTYPE_INT8:
      return Wire::kInt8;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "wire ", static_cast<int>(wire), ", want F32, BF16 or INT8"));
  }
}

}  // namespace ringfleet::cluster
