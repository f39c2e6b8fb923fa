// SPDX-License-Identifier: Apache-2.0
// A library to be preloaded into tests: threads sleep at random where they meet
// others, at a socket, behind a wait for a condition or for a lock of Abseil's,
// and at their start. A test that waits for too little fails with it as on a
// machine whose processors are busy.
//
// RINGFLEET_DELAY_RATE: one of so many calls sleeps [20]. RINGFLEET_DELAY_US:
// for up to so many microseconds [20000], and one in eight times for up to five
// times as long.
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

// A function that this library hides. It is found without a guard, because a
// guard waits by syscall().
template <typename Function>
class Hidden {
 public:
  constexpr explicit Hidden(const char* name) : name_(name) {}
  Function* get() {
    Function* function = function_.load(std::memory_order_relaxed);
    if (function == nullptr) {
      function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name_));
      function_.store(function, std::memory_order_relaxed);
    }
    return function;
  }

 private:
  const char* const name_;
  std::atomic<Function*> function_{nullptr};
};

constinit Hidden<ssize_t(int, const void*, size_t, int)> hidden_send("send");
constinit Hidden<ssize_t(int, const msghdr*, int)> hidden_sendmsg("sendmsg");
constinit Hidden<ssize_t(int, void*, size_t, int)> hidden_recv("recv");
constinit Hidden<ssize_t(int, msghdr*, int)> hidden_recvmsg("recvmsg");
constinit Hidden<int(int, epoll_event*, int, int)> hidden_epoll_wait(
    "epoll_wait");
constinit Hidden<int(pollfd*, nfds_t, int)> hidden_poll("poll");
constinit Hidden<int(pthread_t*, const pthread_attr_t*, void* (*)(void*),
                     void*)>
    hidden_create("pthread_create");
constinit Hidden<int(pthread_cond_t*, pthread_mutex_t*)> hidden_wait(
    "pthread_cond_wait");
constinit Hidden<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>
    hidden_timed_wait("pthread_cond_timedwait");
constinit Hidden<int(pthread_cond_t*, pthread_mutex_t*, clockid_t,
                     const timespec*)>
    hidden_clock_wait("pthread_cond_clockwait");
constinit Hidden<long(long, ...)> hidden_syscall("syscall");

// A setting from the environment.
class Setting {
 public:
  constexpr Setting(const char* name, uint64_t absent)
      : name_(name), absent_(absent) {}
  uint64_t get() {
    uint64_t number = number_.load(std::memory_order_relaxed);
    if (number == 0) {
      const char* const text = std::getenv(name_);
      if (text != nullptr) number = std::strtoull(text, nullptr, 10);
      if (number == 0) number = absent_;
      number_.store(number, std::memory_order_relaxed);
    }
    return number;
  }

 private:
  const char* const name_;
  const uint64_t absent_;
  std::atomic<uint64_t> number_{0};  // 0: not read.
};

constinit Setting rate("RINGFLEET_DELAY_RATE", 20);
constinit Setting most_us("RINGFLEET_DELAY_US", 20'000);

uint64_t NextRandom() {
  static thread_local uint64_t state = 0;
  if (state == 0) {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    state = static_cast<uint64_t>(now.tv_nsec) * 0x5851f42d4c957f2d ^
            static_cast<uint64_t>(getpid()) << 32 ^
            reinterpret_cast<uintptr_t>(&state);
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Keeps errno.
void Delay() {
  const uint64_t random = NextRandom();
  if (random % rate.get() != 0) return;
  uint64_t us = (random >> 16) % most_us.get();
  if (random >> 61 == 0) us *= 5;
  const int error = errno;
  timespec time = {};
  time.tv_sec = static_cast<time_t>(us / 1'000'000);
  time.tv_nsec = static_cast<long>(us % 1'000'000 * 1000);
  hidden_syscall.get()(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, nullptr);
  errno = error;
}

struct Start {
  void* (*run)(void*);
  void* argument;
};

void* RunLate(void* given) {
  const std::unique_ptr<Start> start(static_cast<Start*>(given));
  Delay();
  return start->run(start->argument);
}

}  // namespace

extern "C" {

ssize_t send(int socket, const void* data, size_t size, int flags) {
  Delay();
  return hidden_send.get()(socket, data, size, flags);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  Delay();
  return hidden_sendmsg.get()(socket, message, flags);
}

ssize_t recv(int socket, void* data, size_t size, int flags) {
  const ssize_t received = hidden_recv.get()(socket, data, size, flags);
  Delay();
  return received;
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  const ssize_t received = hidden_recvmsg.get()(socket, message, flags);
  Delay();
  return received;
}

int epoll_wait(int poller, epoll_event* events, int most, int timeout) {
  const int found = hidden_epoll_wait.get()(poller, events, most, timeout);
  Delay();
  return found;
}

int poll(pollfd* files, nfds_t count, int timeout) {
  const int found = hidden_poll.get()(files, count, timeout);
  Delay();
  return found;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                   void* (*run)(void*), void* argument) noexcept {
  auto start = std::make_unique<Start>(Start{run, argument});
  const int error =
      hidden_create.get()(thread, attributes, RunLate, start.get());
  if (error == 0) static_cast<void>(start.release());
  return error;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  const int error = hidden_wait.get()(condition, mutex);
  Delay();
  return error;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  const int error = hidden_timed_wait.get()(condition, mutex, until);
  Delay();
  return error;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const timespec* until) {
  const int error = hidden_clock_wait.get()(condition, mutex, clock, until);
  Delay();
  return error;
}

// Locks of Abseil wait by it.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const long result =
      hidden_syscall.get()(number, arguments[0], arguments[1], arguments[2],
                           arguments[3], arguments[4], arguments[5]);
  if (number == SYS_futex) Delay();
  return result;
}

}  // extern "C"
