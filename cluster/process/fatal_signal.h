// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_FATAL_SIGNAL_H_
#define RINGFLEET_CLUSTER_PROCESS_FATAL_SIGNAL_H_

namespace ringfleet::cluster {

// Makes a crash of this process write on stderr: a line with the time, the
// stack of the thread, and a last line that begins with `program` and says why.
// A crash is SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT, which then end the
// process as they do by default. SIGBUS comes when a mapped file is cut while
// it is in use. A signal that has a handler already keeps it, except SIGBUS:
// sanitizers have theirs. `program` must outlive the process. Call before other
// threads start.
void ExplainCrashes(const char* program);

}  // namespace ringfleet::cluster

#endif  // RINGFLEET_CLUSTER_PROCESS_FATAL_SIGNAL_H_
