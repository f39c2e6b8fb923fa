// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_WORKER_SERVICE_HOST_SERVICE_H_
#define RINGFLEET_WORKER_SERVICE_HOST_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "protos/host.grpc.pb.h"

namespace ringfleet::worker {

// Returns whether `path` is a file, or a folder with *.safetensors files.
bool HasWeights(const std::string& path);

// Returns the bytes a second at which one thread reads a file, or the largest
// file of a folder, past the page cache. 0: there is no file, or the system
// cannot read past the cache.
double MeasureDiskRate(const std::string& path, absl::Duration time);

// Serves Host. Thread-safe.
class HostService final : public v1::Host::Service {
 public:
  // `threads` compute a step. `memory_limit_bytes` is the memory that the
  // worker may use; 0: the available memory. `log_folder` holds its log file;
  // empty: it has none.
  HostService(int threads, uint64_t memory_limit_bytes,
              std::string log_folder = "")
      : threads_(threads),
        memory_limit_bytes_(memory_limit_bytes),
        log_folder_(std::move(log_folder)) {}

  grpc::Status Measure(grpc::ServerContext* context,
                       const v1::MeasureHostRequest* request,
                       v1::HostReport* report) override;
  grpc::Status ReadClock(grpc::ServerContext* context,
                         const v1::ReadClockRequest* request,
                         v1::ClockReading* reading) override;
  grpc::Status DescribeMachine(grpc::ServerContext* context,
                               const v1::DescribeMachineRequest* request,
                               v1::MachineDescription* description) override;

 private:
  const int threads_;
  const uint64_t memory_limit_bytes_;
  const std::string log_folder_;
  std::atomic<bool> active_{false};
};

}  // namespace ringfleet::worker

#endif  // RINGFLEET_WORKER_SERVICE_HOST_SERVICE_H_
