// SPDX-License-Identifier: Apache-2.0
// A library to be preloaded into tests: threads sleep at random where they meet
// others, at a socket, at a lock that somebody held, and at their start. A test
// that waits for too little fails with it as on a machine whose processors are
// busy.
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

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace {

uint64_t NumberFrom(const char* variable, uint64_t absent) {
  const char* const text = std::getenv(variable);
  const uint64_t number =
      text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return number == 0 ? absent : number;
}

// Returns the function that this library hides.
template <typename Function>
Function* Hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

long Call(long number, long a, long b, long c, long d, long e, long f) {
  static auto* const hidden = Hidden<long(long, ...)>("syscall");
  return hidden(number, a, b, c, d, e, f);
}

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
  static const uint64_t rate = NumberFrom("RINGFLEET_DELAY_RATE", 20);
  static const uint64_t most_us = NumberFrom("RINGFLEET_DELAY_US", 20'000);
  const uint64_t random = NextRandom();
  if (random % rate != 0) return;
  uint64_t us = (random >> 16) % most_us;
  if (random >> 61 == 0) us *= 5;
  const int error = errno;
  timespec time = {};
  time.tv_sec = static_cast<time_t>(us / 1'000'000);
  time.tv_nsec = static_cast<long>(us % 1'000'000 * 1000);
  Call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, reinterpret_cast<long>(&time),
       0, 0, 0);
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
  static auto* const hidden = Hidden<decltype(send)>("send");
  Delay();
  return hidden(socket, data, size, flags);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const hidden = Hidden<decltype(sendmsg)>("sendmsg");
  Delay();
  return hidden(socket, message, flags);
}

ssize_t recv(int socket, void* data, size_t size, int flags) {
  static auto* const hidden = Hidden<decltype(recv)>("recv");
  const ssize_t received = hidden(socket, data, size, flags);
  Delay();
  return received;
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static auto* const hidden = Hidden<decltype(recvmsg)>("recvmsg");
  const ssize_t received = hidden(socket, message, flags);
  Delay();
  return received;
}

int epoll_wait(int poller, epoll_event* events, int most, int timeout) {
  static auto* const hidden = Hidden<decltype(epoll_wait)>("epoll_wait");
  const int found = hidden(poller, events, most, timeout);
  Delay();
  return found;
}

int poll(pollfd* files, nfds_t count, int timeout) {
  static auto* const hidden = Hidden<decltype(poll)>("poll");
  const int found = hidden(files, count, timeout);
  Delay();
  return found;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                   void* (*run)(void*), void* argument) noexcept {
  static auto* const hidden =
      Hidden<decltype(pthread_create)>("pthread_create");
  auto start = std::make_unique<Start>(Start{run, argument});
  const int error = hidden(thread, attributes, RunLate, start.get());
  if (error == 0) static_cast<void>(start.release());
  return error;
}

// Locks of Abseil and of the standard library wait with futexes.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const long result = Call(number, arguments[0], arguments[1], arguments[2],
                           arguments[3], arguments[4], arguments[5]);
  if (number == SYS_futex) Delay();
  return result;
}

}  // extern "C"
