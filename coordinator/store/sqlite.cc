// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/file_error.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// A reader and a writer of one process never wait for each other in WAL mode.
// A checkpoint by a stranger (a backup, the sqlite3 shell) may take a moment.
constexpr int kBusyMs = 2000;

// `error` is the errno of the call that failed, 0 if SQLite did not keep it.
// A full disk is a mere I/O error to SQLite if the index of its log must grow.
absl::Status DiskError(const std::string& message, int error) {
  if (error == 0) return absl::UnavailableError(message);
  const absl::Status cause = cluster::FileError(message, error);
  return absl::IsResourceExhausted(cause)
             ? cause
             : absl::UnavailableError(cause.message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Database>> Database::Open(
    const std::string& path, Access access) {
  const int flags =
      SQLITE_OPEN_NOMUTEX |
      (access == Access::kRead ? SQLITE_OPEN_READONLY
                               : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  // A failed open has a handle, too, which must be closed.
  std::unique_ptr<Database> database(new Database(path, handle));
  RF_RETURN_IF_ERROR(database->StatusOf(code));
  sqlite3_busy_timeout(handle, kBusyMs);
  return database;
}

Database::~Database() { sqlite3_close(handle_); }

absl::Status Database::StatusOf(int code) {
  switch (code) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return absl::OkStatus();
    default:
      break;
  }
  const std::string message = absl::StrCat(
      path_, ": ",
      handle_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(handle_));
  absl::Status status;
  switch (code & 0xff) {
    case SQLITE_CONSTRAINT:
      return absl::AlreadyExistsError(message);
    case SQLITE_FULL:
      status = absl::ResourceExhaustedError(message);
      break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      status = absl::DataLossError(message);
      break;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      status = DiskError(
          message, handle_ == nullptr ? 0 : sqlite3_system_errno(handle_));
      break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_NOMEM:
    case SQLITE_PROTOCOL:
      status = absl::UnavailableError(message);
      break;
    default:
      return absl::InternalError(message);
  }
  if (failure_.ok()) failure_ = status;
  return status;
}

absl::Status Database::Run(const std::string& sql) {
  return StatusOf(
      sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr));
}

Statement Database::Prepare(absl::string_view sql) {
  return Statement(this, sql);
}

bool Database::in_transaction() const {
  return sqlite3_get_autocommit(handle_) == 0;
}

int64_t Database::changes() const { return sqlite3_changes64(handle_); }

Statement::Statement(Database* database, absl::string_view sql)
    : database_(database),
      status_(database->StatusOf(sqlite3_prepare_v2(
          database->handle_, sql.data(), static_cast<int>(sql.size()),
          &statement_, nullptr))) {}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int64_t value) {
  if (status_.ok()) {
    status_ =
        database_->StatusOf(sqlite3_bind_int64(statement_, ++bound_, value));
  }
  return *this;
}

Statement& Statement::Bind(absl::string_view text) {
  if (status_.ok()) {
    // An empty view may point nowhere, which SQLite takes for NULL.
    status_ = database_->StatusOf(sqlite3_bind_text64(
        statement_, ++bound_, text.empty() ? "" : text.data(), text.size(),
        SQLITE_STATIC, SQLITE_UTF8));
  }
  return *this;
}

Statement& Statement::BindBlob(absl::string_view bytes) {
  if (status_.ok()) {
    status_ = database_->StatusOf(sqlite3_bind_blob64(
        statement_, ++bound_, bytes.empty() ? "" : bytes.data(), bytes.size(),
        SQLITE_STATIC));
  }
  return *this;
}

Statement& Statement::BindNull() {
  if (status_.ok()) {
    status_ = database_->StatusOf(sqlite3_bind_null(statement_, ++bound_));
  }
  return *this;
}

bool Statement::Next() {
  if (!status_.ok()) return false;
  const int code = sqlite3_step(statement_);
  status_ = database_->StatusOf(code);
  return code == SQLITE_ROW;
}

absl::Status Statement::Run() {
  while (Next()) {
  }
  if (statement_ != nullptr) {
    sqlite3_reset(statement_);
    bound_ = 0;
  }
  return status_;
}

int64_t Statement::Integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

absl::string_view Statement::Text(int column) const {
  const void* const bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? absl::string_view()
                          : absl::string_view(static_cast<const char*>(bytes),
                                              static_cast<size_t>(size));
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

}  // namespace ringfleet::coordinator
