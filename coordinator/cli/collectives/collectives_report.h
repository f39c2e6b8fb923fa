// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REPORT_H_
#define RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REPORT_H_

#include <string>
#include <vector>

#include "coordinator/cli/json_output.h"
#include "protos/worker.pb.h"

namespace ringfleet::coordinator::cli {

// Bandwidths by nccl-tests' doc/PERFORMANCE.md, from the median time. algbw is
// the vector's bytes divided by the time. busbw is algbw times the part of the
// vector that each rank must send: 2 (n - 1) / n for all_reduce, (n - 1) / n
// for all_gather, reduce_scatter and all_to_all, 1 for broadcast. Both are 0
// for an operation without bytes.
struct Bandwidths {
  double algbw_gbps = 0;  // 1e9 bytes per second.
  double busbw_gbps = 0;  // 1e9 bytes per second.
};
// Returns the bandwidths of a case between `world` ranks.
Bandwidths BandwidthsOf(const v1::CollectiveFigures& figures, int world);

// Returns the part of the exchange's time that a fused product hides. It is 1 -
// (fused - compute) / communicate, the OSU benchmarks' formula.
double OverlapOf(const v1::CollectiveFigures& figures);

// Returns an array with an object for each case:
//   {op,algo,wire,transport,world,bytes,p50_us,p99_us,algbw_gbps,busbw_gbps,
//     cpu_s_per_gb,wrong,hash,wire_bytes,iterations}
// The hash has 16 hexadecimal digits. A fused operation also has
//   {m,n,k,dtype,unfused_us,compute_us,comm_us,overlap,tile_columns,
//     segment_bytes,piece_rows}
Json CollectivesJson(const std::vector<v1::CollectiveFigures>& all, int world);

// Returns a table in Markdown. A second table with the fused operations
// follows.
std::string CollectivesTable(const std::vector<v1::CollectiveFigures>& all,
                             int world);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_COLLECTIVES_COLLECTIVES_REPORT_H_
