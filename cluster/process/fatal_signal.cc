// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/fatal_signal.h"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "kernels/check.h"

namespace ringfleet::cluster {
namespace {

constexpr char kBusError[] =
    ": bus error (SIGBUS): a file that is mapped into memory, such as a packed "
    "shard, was cut or cannot be read any more\n";

const char* g_signalled = "";

// Async-signal-safe. The instruction runs again behind it, and the default
// action ends the process.
void OnBusError(int) {
  const iovec parts[] = {
      {const_cast<char*>(g_signalled), std::strlen(g_signalled)},
      {const_cast<char*>(kBusError), sizeof(kBusError) - 1}};
  [[maybe_unused]] const ssize_t written = writev(STDERR_FILENO, parts, 2);
}

}  // namespace

void ExplainBusErrors(const char* program) {
  g_signalled = program;
  struct sigaction action = {};
  action.sa_handler = &OnBusError;
  action.sa_flags = SA_RESETHAND;
  RF_CHECK(sigaction(SIGBUS, &action, nullptr) == 0);
}

}  // namespace ringfleet::cluster
