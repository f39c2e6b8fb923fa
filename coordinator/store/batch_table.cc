// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/batch_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

constexpr char kBatchColumns[] =
    "id, name, owner, client_key, model, endpoint, input_file, input_hash, "
    "priority, "
    "state, created_ms, in_progress_ms, expires_ms, finalizing_ms, "
    "completed_ms, failed_ms, expired_ms, cancelling_ms, cancelled_ms, "
    "output_seconds, total, completed, failed, prompt_tokens, cached_tokens, "
    "completion_tokens, reasoning_tokens, output_file, error_file, metadata, "
    "errors";

BatchRecord BatchOfRow(const Statement& row) {
  int column = 0;
  const auto text = [&] { return std::string(row.Text(column++)); };
  const auto number = [&] { return row.Integer(column++); };
  BatchRecord batch;
  batch.id = text();
  batch.name = text();
  batch.owner = text();
  if (!row.IsNull(column)) batch.client_key = std::string(row.Text(column));
  ++column;
  batch.model = text();
  batch.endpoint = text();
  batch.input_file = text();
  batch.input_hash = text();
  batch.priority = number();
  batch.state = text();
  for (int64_t* const field :
       {&batch.created_ms, &batch.in_progress_ms, &batch.expires_ms,
        &batch.finalizing_ms, &batch.completed_ms, &batch.failed_ms,
        &batch.expired_ms, &batch.cancelling_ms, &batch.cancelled_ms,
        &batch.output_seconds, &batch.total, &batch.completed, &batch.failed,
        &batch.prompt_tokens, &batch.cached_tokens, &batch.completion_tokens,
        &batch.reasoning_tokens}) {
    *field = number();
  }
  batch.output_file = text();
  batch.error_file = text();
  batch.metadata = text();
  batch.errors = text();
  return batch;
}

absl::StatusOr<std::vector<BatchRecord>> BatchesOf(Statement& query) {
  std::vector<BatchRecord> batches;
  while (query.Next()) batches.push_back(BatchOfRow(query));
  RF_RETURN_IF_ERROR(query.status());
  return batches;
}

LineRecord LineOfRow(const Statement& row) {
  LineRecord line;
  line.number = row.Integer(0);
  line.place = row.Integer(1);
  line.begin = row.Integer(2);
  line.length = row.Integer(3);
  line.custom_id = std::string(row.Text(4));
  if (!row.IsNull(5)) line.seed = row.Integer(5);
  return line;
}

absl::StatusOr<std::vector<LineRecord>> LinesOf(Statement& query) {
  std::vector<LineRecord> lines;
  while (query.Next()) lines.push_back(LineOfRow(query));
  RF_RETURN_IF_ERROR(query.status());
  return lines;
}

// Makes the file that shows a batch's outputs or errors. Returns its id; empty:
// there are no such lines.
absl::StatusOr<std::string> MakeFile(Database& database,
                                     const BatchRecord& batch, bool errors,
                                     int64_t now_ms) {
  Statement sum = database.Prepare(
      "SELECT COUNT(*), SUM(LENGTH(CAST(text AS BLOB))) FROM outputs WHERE "
      "batch = ? AND failed = ?");
  sum.Bind(batch.id).Bind(int64_t{errors});
  const int64_t lines = sum.Next() ? sum.Integer(0) : 0;
  RF_RETURN_IF_ERROR(sum.status());
  if (lines == 0) return "";
  FileRecord file;
  file.id = NewId("file-");
  file.owner = batch.owner;
  file.purpose = "batch_output";
  file.name = absl::StrCat(batch.id, errors ? "_error.jsonl" : "_output.jsonl");
  file.bytes = sum.Integer(1);
  file.created_ms = now_ms;
  if (batch.output_seconds > 0) {
    file.expires_ms = now_ms + batch.output_seconds * 1000;
  }
  file.batch = batch.id;
  file.errors = errors;
  RF_RETURN_IF_ERROR(InsertFile(database, file));
  return file.id;
}

}  // namespace

bool BatchRecord::has_ended() const { return ended_ms() != 0; }

int64_t BatchRecord::ended_ms() const {
  return std::max({completed_ms, failed_ms, expired_ms, cancelled_ms});
}

absl::Status InsertBatch(Database& database, const BatchRecord& batch) {
  Statement insert = database.Prepare(
      "INSERT INTO batches (id, name, owner, client_key, model, endpoint, "
      "input_file, input_hash, priority, state, created_ms, expires_ms, "
      "output_seconds, metadata) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
      "?, ?)");
  insert.Bind(batch.id).Bind(batch.name).Bind(batch.owner);
  if (batch.client_key.has_value()) {
    insert.Bind(*batch.client_key);
  } else {
    insert.BindNull();
  }
  return insert.Bind(batch.model)
      .Bind(batch.endpoint)
      .Bind(batch.input_file)
      .Bind(batch.input_hash)
      .Bind(batch.priority)
      .Bind(batch.state)
      .Bind(batch.created_ms)
      .Bind(batch.expires_ms)
      .Bind(batch.output_seconds)
      .Bind(batch.metadata)
      .Run();
}

absl::StatusOr<BatchRecord> FindBatch(Database& database, absl::string_view id,
                                      absl::string_view owner) {
  Statement query = database.Prepare(
      absl::StrCat("SELECT ", kBatchColumns, " FROM batches WHERE id = ?"));
  query.Bind(id);
  if (query.Next()) {
    BatchRecord batch = BatchOfRow(query);
    if (owner.empty() || batch.owner == owner) return batch;
  }
  RF_RETURN_IF_ERROR(query.status());
  return absl::NotFoundError(absl::StrCat("no batch found with id '", id, "'"));
}

absl::StatusOr<std::optional<BatchRecord>> FindBatchByKey(
    Database& database, absl::string_view owner, absl::string_view client_key) {
  Statement query = database.Prepare(
      absl::StrCat("SELECT ", kBatchColumns,
                   " FROM batches WHERE owner = ? AND client_key = ?"));
  query.Bind(owner).Bind(client_key);
  std::optional<BatchRecord> batch;
  if (query.Next()) batch = BatchOfRow(query);
  RF_RETURN_IF_ERROR(query.status());
  return batch;
}

absl::StatusOr<std::vector<BatchRecord>> ListBatches(Database& database,
                                                     const PageOptions& page) {
  BatchRecord after;
  if (!page.after.empty()) {
    RF_ASSIGN_OR_RETURN(after, FindBatch(database, page.after, page.owner));
  }
  const char* const order = page.ascending ? "ASC" : "DESC";
  Statement query = database.Prepare(absl::StrFormat(
      "SELECT %s FROM batches WHERE (?1 = '' OR owner = ?1) AND (?2 = '' OR "
      "(created_ms, id) %s (?3, ?2)) ORDER BY created_ms %s, id %s LIMIT ?4",
      kBatchColumns, page.ascending ? ">" : "<", order, order));
  query.Bind(page.owner)
      .Bind(page.after)
      .Bind(after.created_ms)
      .Bind(page.limit);
  return BatchesOf(query);
}

absl::StatusOr<std::vector<BatchRecord>> ListOpenBatches(Database& database) {
  Statement query = database.Prepare(
      absl::StrCat("SELECT ", kBatchColumns,
                   " FROM batches WHERE state IN ('validating', 'in_progress', "
                   "'finalizing', 'cancelling') ORDER BY created_ms, id"));
  return BatchesOf(query);
}

absl::StatusOr<std::vector<BatchRecord>> ListEndedBatches(Database& database) {
  Statement query = database.Prepare(absl::StrCat(
      "SELECT ", kBatchColumns,
      " FROM batches WHERE state IN ('failed', 'completed', 'expired', "
      "'cancelled') ORDER BY MAX(completed_ms, failed_ms, expired_ms, "
      "cancelled_ms), id"));
  return BatchesOf(query);
}

absl::StatusOr<int64_t> UsedBytes(Database& database) {
  Statement query = database.Prepare(
      "SELECT (page_count - freelist_count) * page_size + (SELECT "
      "COALESCE(SUM(bytes), 0) FROM files WHERE batch = '') FROM "
      "pragma_page_count(), pragma_freelist_count(), pragma_page_size()");
  const int64_t bytes = query.Next() ? query.Integer(0) : 0;
  RF_RETURN_IF_ERROR(query.status());
  return bytes;
}

absl::Status BeginBatch(Database& database, absl::string_view id,
                        const std::vector<LineRecord>& lines, int64_t now_ms) {
  Statement update = database.Prepare(
      "UPDATE batches SET state = 'in_progress', in_progress_ms = ?, total = ? "
      "WHERE id = ? AND state = 'validating'");
  RF_RETURN_IF_ERROR(update.Bind(now_ms)
                         .Bind(static_cast<int64_t>(lines.size()))
                         .Bind(id)
                         .Run());
  if (database.changes() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("batch ", id, " is not validated any more"));
  }
  Statement insert = database.Prepare(
      "INSERT INTO lines (batch, number, place, begin, length, custom_id, "
      "seed) VALUES (?, ?, ?, ?, ?, ?, ?)");
  for (const LineRecord& line : lines) {
    insert.Bind(id)
        .Bind(line.number)
        .Bind(line.place)
        .Bind(line.begin)
        .Bind(line.length)
        .Bind(line.custom_id);
    if (line.seed.has_value()) {
      insert.Bind(*line.seed);
    } else {
      insert.BindNull();
    }
    RF_RETURN_IF_ERROR(insert.Run());
  }
  return absl::OkStatus();
}

absl::Status FailBatch(Database& database, absl::string_view id,
                       const std::string& errors, int64_t now_ms) {
  Statement update = database.Prepare(
      "UPDATE batches SET state = 'failed', failed_ms = ?, errors = ?, "
      "client_key = NULL WHERE id = ? AND state = 'validating'");
  RF_RETURN_IF_ERROR(update.Bind(now_ms).Bind(errors).Bind(id).Run());
  if (database.changes() > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("batch ", id, " is not validated any more"));
}

absl::StatusOr<std::vector<LineRecord>> ListOpenLines(Database& database,
                                                      absl::string_view batch,
                                                      int64_t after_place,
                                                      int64_t after_number,
                                                      int64_t limit) {
  Statement query = database.Prepare(
      "SELECT number, place, begin, length, custom_id, seed FROM lines WHERE "
      "batch = ? AND done = 0 AND (place, number) > (?, ?) ORDER BY place, "
      "number LIMIT ?");
  query.Bind(batch).Bind(after_place).Bind(after_number).Bind(limit);
  return LinesOf(query);
}

absl::Status InsertOutput(Database& database, absl::string_view batch,
                          const OutputRecord& output, const BatchUsage& usage) {
  Statement counts = database.Prepare(
      "UPDATE batches SET completed = completed + ?, failed = failed + ?, "
      "prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?, "
      "completion_tokens = completion_tokens + ?, reasoning_tokens = "
      "reasoning_tokens + ? WHERE id = ? AND state IN "
      "('in_progress', 'cancelling') AND EXISTS (SELECT 1 FROM lines WHERE "
      "batch = batches.id AND number = ? AND done = 0)");
  RF_RETURN_IF_ERROR(counts.Bind(int64_t{!output.failed})
                         .Bind(int64_t{output.failed})
                         .Bind(usage.prompt_tokens)
                         .Bind(usage.cached_tokens)
                         .Bind(usage.completion_tokens)
                         .Bind(usage.reasoning_tokens)
                         .Bind(batch)
                         .Bind(output.number)
                         .Run());
  if (database.changes() == 0) return absl::OkStatus();
  Statement line = database.Prepare(
      "UPDATE lines SET done = 1 WHERE batch = ? AND number = ?");
  RF_RETURN_IF_ERROR(line.Bind(batch).Bind(output.number).Run());
  Statement insert = database.Prepare(
      "INSERT INTO outputs (batch, number, failed, text) VALUES (?, ?, ?, ?)");
  return insert.Bind(batch)
      .Bind(output.number)
      .Bind(int64_t{output.failed})
      .Bind(output.text)
      .Run();
}

absl::Status CancelBatch(Database& database, absl::string_view id,
                         int64_t now_ms) {
  Statement update = database.Prepare(
      "UPDATE batches SET state = 'cancelling', cancelling_ms = ? WHERE id = ? "
      "AND state IN ('validating', 'in_progress')");
  return update.Bind(now_ms).Bind(id).Run();
}

absl::Status FailOpenLines(
    Database& database, absl::string_view batch, int64_t limit,
    const std::function<std::string(const LineRecord&)>& make) {
  RF_ASSIGN_OR_RETURN(const std::vector<LineRecord> lines,
                      ListOpenLines(database, batch, -1, -1, limit));
  Statement counts = database.Prepare(
      "UPDATE batches SET failed = failed + ? WHERE id = ? AND state IN "
      "('in_progress', 'cancelling')");
  RF_RETURN_IF_ERROR(
      counts.Bind(static_cast<int64_t>(lines.size())).Bind(batch).Run());
  if (database.changes() == 0) return absl::OkStatus();
  std::string text;
  Statement done = database.Prepare(
      "UPDATE lines SET done = 1 WHERE batch = ? AND number = ?");
  Statement insert = database.Prepare(
      "INSERT INTO outputs (batch, number, failed, text) VALUES (?, ?, 1, ?)");
  for (const LineRecord& line : lines) {
    text = make(line);
    RF_RETURN_IF_ERROR(done.Bind(batch).Bind(line.number).Run());
    RF_RETURN_IF_ERROR(insert.Bind(batch).Bind(line.number).Bind(text).Run());
  }
  return absl::OkStatus();
}

absl::Status FinishBatch(Database& database, absl::string_view id,
                         const char* state, int64_t now_ms) {
  RF_ASSIGN_OR_RETURN(const BatchRecord batch, FindBatch(database, id, ""));
  if (batch.has_ended()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(const int64_t open, FirstOpenLine(database, id));
  if (open > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "batch ", id, ": line ", open, " has no outcome, want one"));
  }
  RF_ASSIGN_OR_RETURN(const std::string output,
                      MakeFile(database, batch, /*errors=*/false, now_ms));
  RF_ASSIGN_OR_RETURN(const std::string errors,
                      MakeFile(database, batch, /*errors=*/true, now_ms));
  const absl::string_view last(state);
  const bool finalizes = last == kBatchCompleted || last == kBatchExpired;
  Statement update = database.Prepare(absl::StrCat(
      "UPDATE batches SET state = ?1, ",
      finalizes ? "finalizing_ms = ?2, " : "", state,
      "_ms = ?2, output_file = ?3, error_file = ?4 WHERE id = ?5"));
  return update.Bind(last)
      .Bind(now_ms)
      .Bind(output)
      .Bind(errors)
      .Bind(id)
      .Run();
}

absl::StatusOr<std::vector<OutputRecord>> ListOutputs(
    Database& database, absl::string_view batch, const OutputOptions& options) {
  const char* const column =
      options.order == OutputOptions::Order::kInput ? "number" : "sequence";
  Statement query = database.Prepare(absl::StrFormat(
      "SELECT sequence, number, failed, text FROM outputs WHERE batch = ?1 AND "
      "%s > ?2 AND (?3 < 0 OR failed = ?3) AND text <> '' ORDER BY %s LIMIT ?4",
      column, column));
  query.Bind(batch)
      .Bind(options.after)
      .Bind(options.failed.has_value() ? int64_t{*options.failed} : -1)
      .Bind(options.limit);
  std::vector<OutputRecord> outputs;
  int64_t bytes = 0;
  while (query.Next()) {
    const absl::string_view text = query.Text(3);
    bytes += static_cast<int64_t>(text.size());
    if (!outputs.empty() && bytes > options.most_bytes) break;
    outputs.push_back({.sequence = query.Integer(0),
                       .number = query.Integer(1),
                       .failed = query.Integer(2) != 0,
                       .text = std::string(text)});
  }
  RF_RETURN_IF_ERROR(query.status());
  return outputs;
}

absl::StatusOr<int64_t> FirstOpenLine(Database& database,
                                      absl::string_view batch) {
  Statement query = database.Prepare(
      "SELECT MIN(number) FROM lines WHERE batch = ? AND done = 0");
  query.Bind(batch);
  const int64_t first = query.Next() ? query.Integer(0) : 0;
  RF_RETURN_IF_ERROR(query.status());
  return first;
}

absl::Status DeleteBatch(Database& database, absl::string_view id) {
  for (const char* const table : {"lines", "outputs", "files"}) {
    Statement rows = database.Prepare(
        absl::StrCat("DELETE FROM ", table, " WHERE batch = ?"));
    RF_RETURN_IF_ERROR(rows.Bind(id).Run());
  }
  Statement batch = database.Prepare("DELETE FROM batches WHERE id = ?");
  return batch.Bind(id).Run();
}

}  // namespace ringfleet::coordinator
