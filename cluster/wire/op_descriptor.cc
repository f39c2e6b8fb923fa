// SPDX-License-Identifier: Apache-2.0
#include "cluster/wire/op_descriptor.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

template <typename Enum>
struct Named {
  Enum value;
  absl::string_view text;
};

constexpr Named<Operation> kOperations[] = {
    {Operation::kAllReduce, "all_reduce"},
    {Operation::kAllGather, "all_gather"},
    {Operation::kReduceScatter, "reduce_scatter"},
    {Operation::kAllToAll, "all_to_all"},
    {Operation::kBroadcast, "broadcast"},
    {Operation::kBarrier, "barrier"},
    {Operation::kAllGatherMatmul, "all_gather_matmul"},
    {Operation::kMatmulReduceScatter, "matmul_reduce_scatter"},
};
constexpr Named<Algorithm> kAlgorithms[] = {
    {Algorithm::kOneShot, "one_shot"},
    {Algorithm::kTwoShot, "two_shot"},
    {Algorithm::kRing, "ring"},
};
constexpr Named<Wire> kWires[] = {
    {Wire::kF32, "f32"}, {Wire::kBf16, "bf16"}, {Wire::kInt8, "int8"}};

// A direct frame says nothing of its lane.
constexpr Named<Lane> kLaneTexts[] = {
    {Lane::kDirect, ""}, {Lane::kRight, ", right"}, {Lane::kLeft, ", left"}};

template <typename Enum>
absl::string_view TextOf(absl::Span<const Named<Enum>> names, Enum value) {
  for (const auto& name : names) {
    if (name.value == value) return name.text;
  }
  return "";
}

template <typename Enum>
absl::StatusOr<Enum> ValueOf(absl::Span<const Named<Enum>> names,
                             absl::string_view what, absl::string_view text) {
  for (const auto& name : names) {
    if (name.text == text) return name.value;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, " '", text.substr(0, 64), "', want one of ",
      absl::StrJoin(names, ", ", [](std::string* out, const auto& name) {
        absl::StrAppend(out, name.text);
      })));
}

}  // namespace

uint32_t PackDescriptor(const OpDescriptor& d) {
  return static_cast<uint32_t>(d.operation) |
         static_cast<uint32_t>(d.algorithm) << 8 |
         static_cast<uint32_t>(d.wire) << 16 |
         static_cast<uint32_t>(d.lane) << 24;
}

std::string DescriptorName(uint32_t op_descriptor) {
  const auto name = [&](int shift, auto names) {
    const uint32_t number = op_descriptor >> shift & 0xff;
    for (const auto& known : names) {
      if (static_cast<uint32_t>(known.value) == number) {
        return std::string(known.text);
      }
    }
    return absl::StrCat("?", number);
  };
  return absl::StrCat(name(0, absl::MakeConstSpan(kOperations)), " (",
                      name(8, absl::MakeConstSpan(kAlgorithms)), ", ",
                      name(16, absl::MakeConstSpan(kWires)),
                      name(24, absl::MakeConstSpan(kLaneTexts)), ")");
}

absl::string_view OperationText(Operation operation) {
  return TextOf<Operation>(kOperations, operation);
}

absl::string_view AlgorithmText(Algorithm algorithm) {
  return TextOf<Algorithm>(kAlgorithms, algorithm);
}

absl::string_view WireText(Wire wire) { return TextOf<Wire>(kWires, wire); }

absl::StatusOr<Operation> ParseOperation(absl::string_view text) {
  return ValueOf<Operation>(kOperations, "operation", text);
}

absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view text) {
  return ValueOf<Algorithm>(kAlgorithms, "algorithm", text);
}

absl::StatusOr<Wire> ParseWire(absl::string_view text) {
  return ValueOf<Wire>(kWires, "wire", text);
}

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
