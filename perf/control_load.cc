// SPDX-License-Identifier: Apache-2.0
#include "perf/control_load.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdio>
#include <memory>

namespace ringfleet::perf {
namespace {

constexpr char kMethod[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
// ServerReflectionRequest{list_services: "*"}.
constexpr char kRequest[] = "\x3a\x01*";

// The steps of a call are waited for one by one; false when one has failed.
bool Done(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue.Next(&tag, &ok) && ok;
}

void Talk(const std::string& address, std::chrono::microseconds period,
          const std::stop_token& stop) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel = grpc::CreateCustomChannel(
      address, grpc::InsecureChannelCredentials(), arguments);
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const auto call = stub.PrepareCall(&context, kMethod, &queue);
  call->StartCall(nullptr);
  grpc::Slice slice(kRequest, sizeof(kRequest) - 1);
  const grpc::ByteBuffer request(&slice, 1);
  bool ok = Done(queue);
  while (ok && !stop.stop_requested()) {
    call->Write(request, nullptr);
    grpc::ByteBuffer response;
    ok = Done(queue);
    if (ok) {
      call->Read(&response, nullptr);
      ok = Done(queue);
    }
    std::this_thread::sleep_for(period);
  }
  if (!ok) std::fprintf(stderr, "no control stream to %s\n", address.c_str());
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  Done(queue);
}

}  // namespace

ControlLoad::ControlLoad(const std::vector<std::string>& addresses,
                         std::chrono::microseconds period) {
  for (const std::string& address : addresses) {
    threads_.emplace_back([address, period](const std::stop_token& stop) {
      Talk(address, period, stop);
    });
  }
}

ControlLoad::~ControlLoad() = default;

}  // namespace ringfleet::perf
