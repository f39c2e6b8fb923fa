// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/schema.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

// Each entry makes the next version of the one before. An entry that has been
// released never changes. Times are in milliseconds since 1970; 0: none.
constexpr const char* kMigrations[] = {
    R"(
CREATE TABLE owner (        -- The process that writes. One row.
  id TEXT NOT NULL
) STRICT;
CREATE TABLE files (
  id TEXT PRIMARY KEY,
  owner TEXT NOT NULL,      -- Name of the API key; empty: none.
  purpose TEXT NOT NULL,
  name TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  hash TEXT NOT NULL,       -- XXH3-128 of an upload in hex.
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL,
  batch TEXT NOT NULL,      -- Whose lines the file shows; empty: the bytes are
                            -- a file in the folder `files`.
  errors INTEGER NOT NULL   -- It shows the failed lines, else the others.
) STRICT;
CREATE TABLE batches (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  owner TEXT NOT NULL,
  client_key TEXT,          -- Makes a submission idempotent.
  model TEXT NOT NULL,      -- The name under which it was served.
  endpoint TEXT NOT NULL,   -- Empty: each line has its own.
  input_file TEXT NOT NULL,
  input_hash TEXT NOT NULL,
  priority INTEGER NOT NULL,
  state TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  in_progress_ms INTEGER NOT NULL DEFAULT 0,
  expires_ms INTEGER NOT NULL,
  finalizing_ms INTEGER NOT NULL DEFAULT 0,
  completed_ms INTEGER NOT NULL DEFAULT 0,
  failed_ms INTEGER NOT NULL DEFAULT 0,
  expired_ms INTEGER NOT NULL DEFAULT 0,
  cancelling_ms INTEGER NOT NULL DEFAULT 0,
  cancelled_ms INTEGER NOT NULL DEFAULT 0,
  output_seconds INTEGER NOT NULL,  -- The outputs expire after these; 0: never.
  total INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0,
  prompt_tokens INTEGER NOT NULL DEFAULT 0,
  cached_tokens INTEGER NOT NULL DEFAULT 0,
  completion_tokens INTEGER NOT NULL DEFAULT 0,
  output_file TEXT NOT NULL DEFAULT '',
  error_file TEXT NOT NULL DEFAULT '',
  metadata TEXT NOT NULL,   -- A JSON object; empty: none.
  errors TEXT NOT NULL DEFAULT ''  -- Of the validation: a JSON list.
) STRICT;
CREATE UNIQUE INDEX batches_client_key ON batches (owner, client_key)
  WHERE client_key IS NOT NULL;
CREATE INDEX batches_age ON batches (created_ms, id);
CREATE TABLE lines (
  batch TEXT NOT NULL,
  number INTEGER NOT NULL,  -- Counts from 1.
  place INTEGER NOT NULL,   -- Lines run by place, then by number.
  begin INTEGER NOT NULL,   -- Byte of the input.
  length INTEGER NOT NULL,
  custom_id TEXT NOT NULL,
  seed INTEGER,             -- For a line that names none.
  done INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (batch, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX lines_to_do ON lines (batch, place, number) WHERE done = 0;
CREATE TABLE outputs (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,  -- In the order of the commits.
  batch TEXT NOT NULL,
  number INTEGER NOT NULL,
  failed INTEGER NOT NULL,
  text TEXT NOT NULL        -- The line of the output or error file, with its end.
) STRICT;
CREATE UNIQUE INDEX outputs_line ON outputs (batch, number);
CREATE INDEX outputs_sequence ON outputs (batch, sequence);
CREATE TABLE detached (     -- Detached jobs that generate.
  id TEXT PRIMARY KEY,
  created_ms INTEGER NOT NULL,
  ended_ms INTEGER NOT NULL DEFAULT 0,
  job BLOB NOT NULL         -- A StoredJob.
) STRICT;
CREATE TABLE detached_tokens (
  job TEXT NOT NULL,
  first INTEGER NOT NULL,   -- Number of the first token, from 0.
  tokens BLOB NOT NULL,     -- StoredTokens.
  PRIMARY KEY (job, first)
) STRICT, WITHOUT ROWID;
)",
    // Reasonings are a part of completion_tokens.
    "ALTER TABLE batches ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT "
    "0;"};

}  // namespace

const int kSchemaVersion = static_cast<int>(std::size(kMigrations));

absl::Status MigrateSchema(const std::string& path, Database& database) {
  int64_t version = 0, tables = 0;
  {
    Statement query = database.Prepare(
        "SELECT user_version, (SELECT COUNT(*) FROM sqlite_master) FROM "
        "pragma_user_version()");
    if (query.Next()) {
      version = query.Integer(0);
      tables = query.Integer(1);
    }
    RF_RETURN_IF_ERROR(query.status());
  }
  if (version == 0 && tables > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": a database of another program, want another state_dir"));
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": schema ", version, ", want at most ", kSchemaVersion,
        ": a newer ringfleet has written it; install that one, or name another "
        "state_dir"));
  }
  if (version == kSchemaVersion) return absl::OkStatus();
  RF_RETURN_IF_ERROR(database.Run("BEGIN IMMEDIATE"));
  absl::Status status;
  for (int64_t next = version; next < kSchemaVersion && status.ok(); ++next) {
    status = database.Run(kMigrations[next]);
  }
  if (status.ok()) {
    status = database.Run(
        absl::StrCat("PRAGMA user_version = ", kSchemaVersion, "; COMMIT"));
  }
  if (database.in_transaction()) database.Run("ROLLBACK").IgnoreError();
  return status;
}

}  // namespace ringfleet::coordinator
