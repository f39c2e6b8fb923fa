// SPDX-License-Identifier: Apache-2.0
// SQLite's connections and statements with statuses and values of C++.
#ifndef RINGFLEET_COORDINATOR_STORE_SQLITE_H_
#define RINGFLEET_COORDINATOR_STORE_SQLITE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace ringfleet::coordinator {

class Statement;

// A connection. Not thread-safe.
//
// Errors of all calls: RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE: the
// disk cannot be read or written, or another process holds the database.
// DATA_LOSS: the file is damaged or is no database. ALREADY_EXISTS: a value
// that must be unique exists. INTERNAL: a wrong statement.
class Database {
 public:
  enum class Access { kReadWrite, kRead };
  // `path` appears in errors.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path,
                                                        Access access);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Runs statements that have neither values nor rows.
  absl::Status Run(const std::string& sql);
  // Returns a statement for values and rows.
  Statement Prepare(absl::string_view sql);

  // Returns the first error of the disk or of the file since ClearFailure.
  const absl::Status& failure() const { return failure_; }
  void ClearFailure() { failure_ = absl::OkStatus(); }

  // Returns true between BEGIN and COMMIT or ROLLBACK.
  bool in_transaction() const;
  // Returns the rows that the last statement changed.
  int64_t changes() const;

 private:
  friend class Statement;
  Database(std::string path, sqlite3* handle)
      : path_(std::move(path)), handle_(handle) {}
  // Returns the status of a result code, and notes a failure.
  absl::Status StatusOf(int code);

  const std::string path_;
  sqlite3* const handle_;
  absl::Status failure_;
};

// A statement with its values. An error stays: later calls do nothing, and
// `status` returns it. Texts and blobs that are bound must outlive the
// statement.
class Statement {
 public:
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Binds the next value.
  Statement& Bind(int64_t value);
  Statement& Bind(absl::string_view text);
  Statement& BindBlob(absl::string_view bytes);
  Statement& BindNull();

  // Goes to the next row. Returns false at the end, and after an error.
  bool Next();
  // Runs a statement to its end. Then values can be bound anew.
  absl::Status Run();
  const absl::Status& status() const { return status_; }

  // Return a column of the row, counted from 0. Views last until Next.
  int64_t Integer(int column) const;
  absl::string_view Text(int column) const;
  bool IsNull(int column) const;

 private:
  friend class Database;
  Statement(Database* database, absl::string_view sql);

  Database* const database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  absl::Status status_;
};

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_SQLITE_H_
