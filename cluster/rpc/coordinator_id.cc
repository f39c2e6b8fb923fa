// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/coordinator_id.h"

#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"

namespace ringfleet::cluster {
namespace {

constexpr char kMetadataKey[] = "ringfleet-coordinator";

}  // namespace

std::string NewCoordinatorId() {
  std::random_device random;
  std::string id;
  for (int word = 0; word < 4; ++word) {
    absl::StrAppend(&id, absl::Hex(uint32_t{random()}, absl::kZeroPad8));
  }
  return id;
}

void SetCoordinatorId(const std::string& id, grpc::ClientContext* context) {
  if (!id.empty()) context->AddMetadata(kMetadataKey, id);
}

std::string CoordinatorIdOf(const grpc::ServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kMetadataKey);
  if (found == metadata.end()) return "";
  return std::string(found->second.data(), found->second.size());
}

}  // namespace ringfleet::cluster
