// SPDX-License-Identifier: Apache-2.0
#include "cluster/process/thread_limit.h"

#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/process/cgroup.h"
#include "cluster/process/process_limits.h"
#include "cluster/process/status_macros.h"
#include "kernels/check.h"
#include "kernels/mutex.h"

namespace ringfleet::cluster {
namespace {

// gRPC 1.51 keeps a pool of threads for callbacks, one for each CPU of the
// machine within these bounds.
constexpr int64_t kLeastPool = 2;
constexpr int64_t kLargestPool = 32;
// The pool's spare thread, its timers, two of the older timers, the resolver,
// and up to three of its executor.
constexpr int kOtherGrpcThreads = 8;

// gRPC serves callbacks with one thread for two CPUs within these bounds.
constexpr int64_t kLeastCallbackThreads = 2;
constexpr int64_t kMostCallbackThreads = 16;

constexpr int kInterruptThread = 1;
// Steps, watchdog, growth and expert moves of the fleet; waits of members;
// connections; two of the server, while no clients wait; and the forced exit of
// a daemon or the keeper of local workers.
constexpr int kCoordinatorThreads = 9;
// One reads results. One loads, moves experts or records beside it.
constexpr int kThreadsPerWorker = 2;
// Signals, heartbeats, the parent and exchanges; five of calls and steps, and
// one that communicates beside the kernels in place of the first thread.
constexpr int kWorkerThreads = 10;

// Address space that malloc takes for a thread.
constexpr size_t kArena = size_t{128} << 20;

constexpr int kMostLooks = 200;
constexpr int kLookMicroseconds = 500;

// Bytes of a stack of this system's default size.
size_t DefaultStackBytes() {
  pthread_attr_t attributes;
  size_t bytes = size_t{8} << 20;
  if (pthread_attr_init(&attributes) != 0) return bytes;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

void* AwaitMutex(void* mutex) {
  MutexLock lock(static_cast<Mutex*>(mutex));
  return nullptr;
}

// Returns the number of this process's threads.
int CountThreads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 0
               : static_cast<int>(std::distance(
                     tasks, std::filesystem::directory_iterator()));
}

// Address space that a process needs beside stacks.
class Reserve {
 public:
  Reserve()
      : start_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserve() {
    if (held()) munmap(start_, kBytes);
  }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  bool held() const { return start_ != MAP_FAILED; }

 private:
  static constexpr size_t kBytes = size_t{64} << 20;
  void* const start_;
};

struct Started {
  int threads = 0;        // They lived at once.
  bool no_space = false;  // Address space was short for one more.
};

// Starts `own` threads with stacks as usual and `children` with small ones,
// beside `reserve`, and ends them.
Started StartThreads(int own, int children, const Reserve& reserve) {
  if (!reserve.held()) return {.no_space = true};
  const int before = CountThreads();
  Started started;
  Mutex mu;
  std::vector<pthread_t> threads;
  threads.reserve(own + children);
  pthread_attr_t small;
  RF_CHECK(pthread_attr_init(&small) == 0);
  pthread_attr_setstacksize(
      &small, std::max<size_t>(PTHREAD_STACK_MIN, size_t{64} << 10));
  {
    MutexLock lock(&mu);  // Holds the threads.
    for (int i = 0; i < own + children; ++i) {
      pthread_t thread;
      if (pthread_create(&thread, i < own ? nullptr : &small, AwaitMutex,
                         &mu) != 0) {
        // A guard page comes with the stack.
        started.no_space =
            AvailableAddressSpaceBytes() < DefaultStackBytes() + (64 << 10);
        break;
      }
      threads.push_back(thread);
    }
  }
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  // A thread that was joined counts for a moment yet.
  for (int looks = 0; looks < kMostLooks && CountThreads() > before; ++looks) {
    usleep(kLookMicroseconds);
  }
  pthread_attr_destroy(&small);
  started.threads = static_cast<int>(threads.size());
  return started;
}

absl::Status LimitError(uint64_t limit, uint64_t wanted,
                        absl::string_view reason) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "threads: the limit is ", limit, ", want ", wanted, " (", reason, ")"));
}

// Says why of `wanted` threads not all could be started.
absl::Status ExplainRefusal(const Started& started, int wanted) {
  if (started.no_space) {
    return LimitError(started.threads, wanted,
                      "for their stacks, by the limit of address space: ulimit "
                      "-v or -d");
  }
  rlimit tasks = {};
  if (getrlimit(RLIMIT_NPROC, &tasks) == 0 && tasks.rlim_cur != RLIM_INFINITY) {
    const uint64_t limit = tasks.rlim_cur;
    const uint64_t others = limit - std::min<uint64_t>(limit, started.threads);
    return LimitError(limit, others + wanted,
                      absl::StrCat("ulimit -u; this user has ", others));
  }
  return LimitError(started.threads, wanted, "the system starts no more");
}

absl::Status CheckCgroups(uint64_t more) {
  for (const CgroupTasks& tasks : CgroupTaskLimits()) {
    if (tasks.running + more <= tasks.limit) continue;
    return LimitError(
        tasks.limit, tasks.running + more,
        absl::StrCat(tasks.file, "; ", tasks.running, " run there"));
  }
  return absl::OkStatus();
}

int GrpcThreads() {
  return static_cast<int>(std::clamp<int64_t>(sysconf(_SC_NPROCESSORS_CONF),
                                              kLeastPool, kLargestPool)) +
         kOtherGrpcThreads;
}

int CallbackThreads() {
  return static_cast<int>(std::clamp<int64_t>(sysconf(_SC_NPROCESSORS_CONF) / 2,
                                              kLeastCallbackThreads,
                                              kMostCallbackThreads));
}

const char* g_program = "";
std::terminate_handler g_previous = nullptr;

[[noreturn]] void End(const std::string& message) {
  std::fprintf(stderr, "%s: %s\n", g_program, message.c_str());
  std::fflush(stderr);
  _exit(1);
}

// Ends the process if it can start no thread.
void EndIfOutOfThreads() {
  const absl::Status cgroups = CheckCgroups(1);
  if (!cgroups.ok()) End(std::string(cgroups.message()));
  const Started started = StartThreads(1, 0, Reserve());
  if (started.threads == 1) return;
  End(std::string(ExplainRefusal(started, 1).message()));
}

// Runs in place of an abort, in any thread.
void OnTerminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) {
        EndIfOutOfThreads();
        End("threads: the system started no more for a moment");
      }
    } catch (const std::bad_alloc&) {
      End("memory: none is left for this process, want less model or a higher "
          "limit (ulimit -v, ulimit -d)");
    } catch (...) {
    }
  } else if (std::uncaught_exceptions() > 0) {
    EndIfOutOfThreads();  // A running thread's owner did not survive.
  }
  if (g_previous != nullptr) g_previous();
  std::abort();
}

}  // namespace

int ClientThreads() { return GrpcThreads() + kInterruptThread; }

int CoordinatorThreads(int world) {
  return GrpcThreads() + CallbackThreads() + kCoordinatorThreads +
         kThreadsPerWorker * world;
}

int WorkerThreads(int kernel_threads) {
  return GrpcThreads() + kWorkerThreads + kernel_threads;
}

absl::Status CheckThreads(int own, int children) {
  const int wanted = own + children;
  RF_RETURN_IF_ERROR(CheckCgroups(wanted));
  // Arenas of malloc would take the space that stacks need.
  if (AvailableAddressSpaceBytes() < wanted * (DefaultStackBytes() + kArena)) {
    mallopt(M_ARENA_MAX, 1);
  }
  const Started started = StartThreads(own, children, Reserve());
  return started.threads < wanted ? ExplainRefusal(started, wanted)
                                  : absl::OkStatus();
}

void EndWithoutResources(const char* program) {
  g_program = program;
  g_previous = std::set_terminate(&OnTerminate);
}

}  // namespace ringfleet::cluster
