// SPDX-License-Identifier: Apache-2.0
#include "worker/service/host_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/process/build_info.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status.h"
#include "cluster/recording/trace_recorder.h"
#include "kernels/isa.h"
#include "kernels/thread_pool.h"
#include "worker/loading/host.h"
#include "worker/measuring/measure_kernels.h"
#include "worker/service/machine_resources.h"

namespace ringfleet::worker {
namespace {

constexpr uint32_t kLongestProbeMs = 10'000;
constexpr size_t kDiskRead = size_t{4} << 20;

uint32_t CountNumaNodes() {
  std::error_code error;
  uint32_t nodes = 0;
  for (std::filesystem::directory_iterator
           it("/sys/devices/system/node", error),
       end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind("node", 0) == 0 && name.size() > 4) ++nodes;
  }
  return std::max(nodes, 1u);
}

// Returns `path` itself, or the largest file of a folder.
std::string FileToRead(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  std::string largest;
  uint64_t size = 0;
  for (std::filesystem::directory_iterator it(path, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    const uint64_t bytes = it->file_size(unreadable);
    if (unreadable || bytes <= size) continue;
    size = bytes;
    largest = it->path().string();
  }
  return largest;
}

// Adds the space on the file system that has the folder, or where a first
// write would create it.
void AddFolder(const std::string& path, v1::HostReport* report) {
  std::filesystem::path existing = path;
  std::error_code error;
  while (!std::filesystem::exists(existing, error) &&
         existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  const std::filesystem::space_info space =
      std::filesystem::space(existing, error);
  if (error) return;
  v1::FolderSpace* const folder = report->add_folders();
  folder->set_path(path);
  folder->set_free_bytes(space.available);
}

}  // namespace

bool HasWeights(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return true;
  for (std::filesystem::directory_iterator it(path, error), end;
       !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") return true;
  }
  return false;
}

double MeasureDiskRate(const std::string& path, absl::Duration time) {
  if (path.empty()) return 0;
  const int fd = open(FileToRead(path).c_str(),
                      O_RDONLY | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0;
  const std::unique_ptr<void, decltype(&std::free)> buffer(
      std::aligned_alloc(4096, kDiskRead), &std::free);
  const absl::Time begun = absl::Now();
  uint64_t bytes = 0;
  while (buffer != nullptr && absl::Now() - begun < time) {
    const ssize_t size =
        pread(fd, buffer.get(), kDiskRead, static_cast<off_t>(bytes));
    if (size <= 0) break;
    bytes += static_cast<uint64_t>(size);
    if (static_cast<size_t>(size) < kDiskRead) break;
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begun);
  close(fd);
  return bytes == 0 ? 0 : static_cast<double>(bytes) / seconds;
}

grpc::Status HostService::Measure(grpc::ServerContext* context,
                                  const v1::MeasureHostRequest* request,
                                  v1::HostReport* report) {
  if (request->time_ms() == 0 || request->time_ms() > kLongestProbeMs) {
    return cluster::ToGrpc(absl::InvalidArgumentError(absl::StrCat(
        "host: ", request->time_ms(), " ms, want 1 to ", kLongestProbeMs)));
  }
  if (active_.exchange(true)) {
    return cluster::ToGrpc(absl::FailedPreconditionError(
        "host: another measurement of this worker runs"));
  }
  const absl::Duration time = absl::Milliseconds(request->time_ms());
  // All ranks of the host measure at the same time.
  const uint64_t ranks = std::max<uint32_t>(request->ranks_on_host(), 1);
  const uint64_t weight_bytes = ProductTestBytes(LastLevelCacheBytes()) / ranks;
  const uint64_t needed = weight_bytes + kMeasureScratchBytes;
  const uint64_t share = request->memory_bytes() > 0
                             ? request->memory_bytes()
                             : AvailableMemoryBytes() / ranks;
  const uint64_t available = std::min(
      {share, AvailableMemoryBytes(), cluster::AvailableAddressSpaceBytes()});
  absl::Status measured = absl::OkStatus();
  if (needed > available) {
    measured = absl::ResourceExhaustedError(absl::StrCat(
        "host: measuring takes ", needed >> 20, " MiB for each of ", ranks,
        " ranks, have ", available >> 20, " MiB"));
  } else {
    // Threads of its own, because a connected model keeps its threads.
    kernels::ThreadPool pool(threads_);
    measured = MeasureKernels(
        pool, weight_bytes, time,
        [context] { return context != nullptr && context->IsCancelled(); },
        report);
  }
  report->set_disk_bytes_per_second(MeasureDiskRate(request->path(), time));
  report->set_no_weights(!request->path().empty() &&
                         !HasWeights(request->path()));
  active_ = false;
  if (!measured.ok()) return cluster::ToGrpc(measured);
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  report->set_host(host);
  *report->mutable_build() = cluster::GetBuildInfo();
  report->set_cpu(CpuModel());
  report->set_isa(std::string(kernels::IsaName(kernels::CurrentIsa())));
  report->set_threads(static_cast<uint32_t>(threads_));
  report->set_cpus(static_cast<uint32_t>(cluster::AvailableCpus()));
  report->set_numa_nodes(CountNumaNodes());
  for (const std::string& folder : request->folders()) {
    AddFolder(folder, report);
  }
  if (!log_folder_.empty()) AddFolder(log_folder_, report);
  const uint64_t free_bytes = AvailableMemoryBytes();
  report->set_available_memory_bytes(
      memory_limit_bytes_ == 0 ? free_bytes
                               : std::min(free_bytes, memory_limit_bytes_));
  return grpc::Status::OK;
}

grpc::Status HostService::ReadClock(grpc::ServerContext*,
                                    const v1::ReadClockRequest*,
                                    v1::ClockReading* reading) {
  reading->set_unix_ns(absl::GetCurrentTimeNanos());
  reading->set_steady_ns(cluster::TraceNow());
  reading->set_machine(cluster::MachineId());
  return grpc::Status::OK;
}

grpc::Status HostService::DescribeMachine(grpc::ServerContext*,
                                          const v1::DescribeMachineRequest*,
                                          v1::MachineDescription* description) {
  description->set_machine(cluster::MachineId());
  AddMemoryPools(description->mutable_memory());
  return grpc::Status::OK;
}

}  // namespace ringfleet::worker
