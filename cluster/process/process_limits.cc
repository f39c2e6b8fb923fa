// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/process_limits.h"

#include <malloc.h>
#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

rlimit OpenFileLimit() {
  rlimit limit = {};
  RF_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return limit;
}

}  // namespace

void RaiseOpenFileLimit() {
  rlimit limit = OpenFileLimit();
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // CheckOpenFiles() sees a refusal.
}

void KeepFreedMemory() {
  // Several lanes have less in flight.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  // The largest threshold that malloc reaches by itself; setting the other one
  // ends that adaptation.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
}

absl::Status CheckOpenFiles(size_t needed) {
  const rlimit limit = OpenFileLimit();
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("open files: limit ", limit.rlim_cur, ", want at least ",
                   needed, "; raise it with ulimit -n"));
}

}  // namespace ringfleet::cluster
