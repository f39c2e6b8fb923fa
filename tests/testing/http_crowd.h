// SPDX-License-Identifier: Apache-2.0
// Thousands of connections to an HTTP server from one thread, for tests that
// write and read the bytes of HTTP themselves.
#ifndef RINGFLEET_TESTS_TESTING_HTTP_CROWD_H_
#define RINGFLEET_TESTS_TESTING_HTTP_CROWD_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/testing/sockets.h"

namespace ringfleet::testing {

// Connections are numbered in the order of their calls. Use from one thread. A
// failure of a system call prints its message and ends the process.
class HttpCrowd {
 public:
  explicit HttpCrowd(int port);

  // Begins a connection, which sends `bytes`. Returns its number.
  size_t Connect(std::string bytes = "");
  // Sends more bytes. A connection that has ended drops them.
  void Send(size_t client, absl::string_view bytes);
  // Closes a connection and forgets it. `reset`: drops what is unsent, and the
  // server's bytes too.
  void Leave(size_t client, bool reset = false);

  // Sends and receives what the kernel takes and has, and waits for that at
  // most `wait_ms`. Returns the connections with new bytes, and those that have
  // ended.
  std::vector<size_t> Poll(int wait_ms);

  // Returns the bytes of a connection; the caller may take some.
  std::string& received(size_t client) { return clients_.at(client).received; }
  // Returns whether the server has closed the connection, or refused it.
  bool ended(size_t client) const { return clients_.at(client).ended; }
  // Returns whether a connection was begun and not left.
  bool has(size_t client) const { return clients_.contains(client); }
  // Number of connections that were begun and neither left nor ended.
  size_t open() const;

 private:
  struct Client {
    Socket socket;
    std::string unsent, received;
    bool ended = false;
  };

  void SetEvents(size_t number, const Client& client, int operation);
  // Return false at the connection's end.
  bool SendSome(Client& client);
  bool ReceiveAll(Client& client, bool* news);

  const int port_;
  const Socket epoll_;
  size_t next_ = 0;
  std::map<size_t, Client> clients_;
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_HTTP_CROWD_H_
