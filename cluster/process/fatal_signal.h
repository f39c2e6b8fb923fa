// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_FATAL_SIGNAL_H_
#define RINGFLEET_CLUSTER_PROCESS_FATAL_SIGNAL_H_

namespace ringfleet::cluster {

// Makes SIGBUS end this process with a line on stderr that says why, and begins
// with `program`. The signal comes when a mapped file is cut while it is in
// use. `program` must outlive the process.
void ExplainBusErrors(const char* program);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_FATAL_SIGNAL_H_
