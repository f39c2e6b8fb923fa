// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/detached_table.h"

#include <utility>

#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {

absl::Status PutDetached(Database& database, const DetachedRecord& record) {
  Statement put = database.Prepare(
      "INSERT OR REPLACE INTO detached (id, created_ms, ended_ms, job) VALUES "
      "(?, ?, ?, ?)");
  return put.Bind(record.id)
      .Bind(record.created_ms)
      .Bind(record.ended_ms)
      .BindBlob(record.job)
      .Run();
}

absl::Status PutDetachedTokens(Database& database, absl::string_view id,
                               int64_t first, absl::string_view tokens) {
  Statement put = database.Prepare(
      "INSERT OR REPLACE INTO detached_tokens (job, first, tokens) VALUES (?, "
      "?, ?)");
  return put.Bind(id).Bind(first).BindBlob(tokens).Run();
}

absl::StatusOr<std::vector<DetachedRecord>> ListDetached(Database& database) {
  std::vector<DetachedRecord> records;
  Statement jobs = database.Prepare(
      "SELECT id, created_ms, ended_ms, job FROM detached ORDER BY created_ms, "
      "id");
  while (jobs.Next()) {
    DetachedRecord record;
    record.id = std::string(jobs.Text(0));
    record.created_ms = jobs.Integer(1);
    record.ended_ms = jobs.Integer(2);
    record.job = std::string(jobs.Text(3));
    Statement parts = database.Prepare(
        "SELECT tokens FROM detached_tokens WHERE job = ? ORDER BY first");
    parts.Bind(record.id);
    while (parts.Next()) record.tokens.emplace_back(parts.Text(0));
    RF_RETURN_IF_ERROR(parts.status());
    records.push_back(std::move(record));
  }
  RF_RETURN_IF_ERROR(jobs.status());
  return records;
}

absl::Status DeleteDetached(Database& database, absl::string_view id) {
  Statement tokens =
      database.Prepare("DELETE FROM detached_tokens WHERE job = ?");
  RF_RETURN_IF_ERROR(tokens.Bind(id).Run());
  Statement job = database.Prepare("DELETE FROM detached WHERE id = ?");
  return job.Bind(id).Run();
}

absl::Status DeleteOldDetached(Database& database, int64_t before_ms) {
  Statement tokens = database.Prepare(
      "DELETE FROM detached_tokens WHERE job IN (SELECT id FROM detached WHERE "
      "ended_ms > 0 AND ended_ms < ?)");
  RF_RETURN_IF_ERROR(tokens.Bind(before_ms).Run());
  Statement jobs = database.Prepare(
      "DELETE FROM detached WHERE ended_ms > 0 AND ended_ms < ?");
  return jobs.Bind(before_ms).Run();
}

}  // namespace ringfleet::coordinator
