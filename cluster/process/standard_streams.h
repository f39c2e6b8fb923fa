// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_CLUSTER_PROCESS_STANDARD_STREAMS_H_
#define RINGFLEET_CLUSTER_PROCESS_STANDARD_STREAMS_H_

namespace ringfleet::cluster {

// Opens the descriptors 0 to 2 that the caller has closed (`>&-`). Otherwise
// the next file or socket gets such a number, and log lines land in a
// checkpoint or in gRPC's sockets. Standard input is then empty and errors are
// dropped. Output fails, because a result that nobody gets is no success.
void OpenStandardStreams();

}  // namespace ringfleet::cluster

// Calls OpenStandardStreams before anything else opens a file. Put it beside
// main. gRPC's library takes a descriptor while it is loaded, and only an
// executable's .preinit_array runs before that.
#define RF_OPEN_STANDARD_STREAMS_FIRST()                      \
  [[gnu::section(".preinit_array"), gnu::used]] static void ( \
      *rf_open_standard_streams)() = &ringfleet::cluster::OpenStandardStreams

#endif  // RINGFLEET_CLUSTER_PROCESS_STANDARD_STREAMS_H_
