// SPDX-License-Identifier: Apache-2.0
// Runs a command and prints what of each CPU it leaves to a computation beside
// it: a thread on each CPU counts, at a priority that anything else precedes.
// The system's own account of idle time does not have what interrupts take from
// a computation, which in a virtual machine is most of it: a timer costs 27 us
// there.
//
//   cpu_left -- build/bin/ringfleet collectives --op all_gather --bytes 7m
//
// Prints on stderr "CPU: 93.0 % left" when the command has ended, with whose
// status it ends. On a quiet machine only: the counters are held against what
// they reached in half a second before.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWarmUp{500}, kCalibration{500};

// One line of a cache each.
struct alignas(64) Count {
  std::atomic<uint64_t> value = 0;
};

std::vector<int> OwnCpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

[[noreturn]] void CountOn(int cpu, Count& count) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  sched_setaffinity(0, sizeof(cpus), &cpus);
  const sched_param lowest = {};
  sched_setscheduler(0, SCHED_IDLE, &lowest);
  for (uint64_t now = 0;; ++now) {
    count.value.store(now, std::memory_order_relaxed);
  }
}

// A process with a thread on each CPU. In a session of its own, because a
// priority only counts within one where the system groups processes by it:
// there the session's comes first.
class Counters {
 public:
  explicit Counters(const std::vector<int>& cpus) : cpus_(cpus) {
    void* const memory =
        mmap(nullptr, cpus_.size() * sizeof(Count), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    counts_ = new (memory) Count[cpus_.size()];
    const pid_t parent = getpid();
    process_ = fork();
    if (process_ == 0) Run(parent);
  }
  ~Counters() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Counters(const Counters&) = delete;

  bool started() const { return process_ > 0; }

  uint64_t Total() const {
    uint64_t total = 0;
    for (size_t i = 0; i < cpus_.size(); ++i) {
      total += counts_[i].value.load(std::memory_order_relaxed);
    }
    return total;
  }

 private:
  [[noreturn]] void Run(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // It died before that.
    setsid();
    const int group = open("/proc/self/autogroup", O_WRONLY);
    if (group >= 0 && write(group, "19", 2) != 2) {
      std::perror("cpu_left: /proc/self/autogroup");
    }
    std::vector<std::thread> others;
    for (size_t i = 1; i < cpus_.size(); ++i) {
      others.emplace_back([this, i] { CountOn(cpus_[i], counts_[i]); });
    }
    CountOn(cpus_[0], counts_[0]);
  }

  const std::vector<int> cpus_;
  Count* counts_ = nullptr;
  pid_t process_ = -1;
};

// Counts a second while `wait` runs.
template <typename Wait>
double Rate(const Counters& counters, Wait wait) {
  const uint64_t before = counters.Total();
  const Clock::time_point start = Clock::now();
  wait();
  const std::chrono::duration<double> time = Clock::now() - start;
  return static_cast<double>(counters.Total() - before) / time.count();
}

}  // namespace

int main(int argc, char** argv) {
  const bool dashes = argc > 1 && std::string_view(argv[1]) == "--";
  char** const command = argv + (dashes ? 2 : 1);
  if (*command == nullptr) {
    std::fprintf(stderr, "usage: cpu_left [--] COMMAND [ARGUMENT...]\n");
    return 2;
  }
  const Counters counters(OwnCpus());
  if (!counters.started()) {
    std::perror("cpu_left");
    return 1;
  }
  std::this_thread::sleep_for(kWarmUp);
  const double all =
      Rate(counters, [] { std::this_thread::sleep_for(kCalibration); });
  if (all <= 0) {
    std::fprintf(stderr, "cpu_left: the counters do not run\n");
    return 1;
  }
  int status = 0;
  bool started = false;
  const double left = Rate(counters, [&] {
    pid_t pid;
    started =
        posix_spawnp(&pid, *command, nullptr, nullptr, command, environ) == 0;
    while (started && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  });
  if (!started) {
    std::perror(*command);
    return 127;
  }
  std::fprintf(stderr, "CPU: %.1f %% left\n", 100 * left / all);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
