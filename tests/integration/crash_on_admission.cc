// SPDX-License-Identifier: Apache-2.0
// Linked with the worker's main, makes a worker that a certain prompt kills. A
// plugin of gRPC's servers sees each plan before the worker does.
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_interceptor.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protos/worker.pb.h"
#include "tests/integration/crash_id.h"

namespace ringfleet::integration {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

bool AdmitsCrashId(const v1::StepPlan& plan) {
  return std::any_of(plan.admissions().begin(), plan.admissions().end(),
                     [](const v1::Admission& admission) {
                       const auto& ids = admission.prompt_ids();
                       return std::find(ids.begin(), ids.end(), kCrashId) !=
                              ids.end();
                     });
}

// Sees the messages of one Run stream.
class PlanInterceptor final : public grpc::experimental::Interceptor {
 public:
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE)) {
      const auto* const plan =
          static_cast<const v1::StepPlan*>(methods->GetRecvMessage());
      if (plan != nullptr && AdmitsCrashId(*plan)) kill(getpid(), SIGKILL);
    }
    methods->Proceed();
  }
};

class InterceptorFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    if (std::strcmp(info->method(), "/ringfleet.v1.Worker/Run") != 0) {
      return nullptr;
    }
    return new PlanInterceptor;
  }
};

class CrashPlugin final : public grpc::ServerBuilderPlugin {
 public:
  std::string name() override { return "crash on admission"; }
  void UpdateServerBuilder(grpc::ServerBuilder* builder) override {
    std::vector<
        std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        factories;
    factories.push_back(std::make_unique<InterceptorFactory>());
    builder->experimental().SetInterceptorCreators(std::move(factories));
  }
  void InitServer(grpc::ServerInitializer*) override {}
  void Finish(grpc::ServerInitializer*) override {}
  void ChangeArguments(const std::string&, void*) override {}
};

[[maybe_unused]] const bool registered = [] {
  grpc::ServerBuilder::InternalAddPluginFactory(
      []() -> std::unique_ptr<grpc::ServerBuilderPlugin> {
        return std::make_unique<CrashPlugin>();
      });
  return true;
}();

}  // namespace
}  // namespace ringfleet::integration
