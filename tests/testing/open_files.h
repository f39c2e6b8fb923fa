// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_OPEN_FILES_H_
#define RINGFLEET_TESTS_TESTING_OPEN_FILES_H_

#include <sys/resource.h>

namespace ringfleet::testing {

// Raises this process's limit of open files as far as it may be, for tests with
// thousands of connections. The destructor puts the old limit back.
class RaisedOpenFiles {
 public:
  RaisedOpenFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    raised_ = before_;
    raised_.rlim_cur = raised_.rlim_max;
    setrlimit(RLIMIT_NOFILE, &raised_);
  }
  ~RaisedOpenFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  RaisedOpenFiles(const RaisedOpenFiles&) = delete;
  RaisedOpenFiles& operator=(const RaisedOpenFiles&) = delete;

  // Returns whether this process may have so many open files.
  bool Allows(rlim_t files) const { return raised_.rlim_cur >= files; }

 private:
  rlimit before_ = {};
  rlimit raised_ = {};
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_OPEN_FILES_H_
