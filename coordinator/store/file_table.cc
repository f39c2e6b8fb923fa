// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/file_table.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator {
namespace {

constexpr char kFileColumns[] =
    "id, owner, purpose, name, bytes, hash, created_ms, expires_ms, batch, "
    "errors";

FileRecord FileOfRow(const Statement& row) {
  FileRecord file;
  file.id = std::string(row.Text(0));
  file.owner = std::string(row.Text(1));
  file.purpose = std::string(row.Text(2));
  file.name = std::string(row.Text(3));
  file.bytes = row.Integer(4);
  file.hash = std::string(row.Text(5));
  file.created_ms = row.Integer(6);
  file.expires_ms = row.Integer(7);
  file.batch = std::string(row.Text(8));
  file.errors = row.Integer(9) != 0;
  return file;
}

}  // namespace

std::string NewId(absl::string_view prefix) {
  std::random_device device;
  std::string id(prefix);
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", device());
  return id;
}

absl::Status InsertFile(Database& database, const FileRecord& file) {
  Statement insert =
      database.Prepare(absl::StrCat("INSERT INTO files (", kFileColumns,
                                    ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  return insert.Bind(file.id)
      .Bind(file.owner)
      .Bind(file.purpose)
      .Bind(file.name)
      .Bind(file.bytes)
      .Bind(file.hash)
      .Bind(file.created_ms)
      .Bind(file.expires_ms)
      .Bind(file.batch)
      .Bind(int64_t{file.errors})
      .Run();
}

absl::StatusOr<FileRecord> FindFile(Database& database, absl::string_view id,
                                    absl::string_view owner) {
  Statement query = database.Prepare(
      absl::StrCat("SELECT ", kFileColumns, " FROM files WHERE id = ?"));
  query.Bind(id);
  if (query.Next()) {
    FileRecord file = FileOfRow(query);
    if (owner.empty() || file.owner == owner) return file;
  }
  RF_RETURN_IF_ERROR(query.status());
  return absl::NotFoundError(absl::StrCat("no such file: '", id, "'"));
}

absl::StatusOr<std::vector<FileRecord>> ListFiles(Database& database,
                                                  const PageOptions& page,
                                                  absl::string_view purpose) {
  FileRecord after;
  if (!page.after.empty()) {
    RF_ASSIGN_OR_RETURN(after, FindFile(database, page.after, page.owner));
  }
  const char* const order = page.ascending ? "ASC" : "DESC";
  Statement query = database.Prepare(absl::StrFormat(
      "SELECT %s FROM files WHERE (?1 = '' OR owner = ?1) AND (?2 = '' OR "
      "purpose = ?2) AND (?3 = '' OR (created_ms, id) %s (?4, ?3)) ORDER BY "
      "created_ms %s, id %s LIMIT ?5",
      kFileColumns, page.ascending ? ">" : "<", order, order));
  query.Bind(page.owner)
      .Bind(purpose)
      .Bind(page.after)
      .Bind(after.created_ms)
      .Bind(page.limit);
  std::vector<FileRecord> files;
  while (query.Next()) files.push_back(FileOfRow(query));
  RF_RETURN_IF_ERROR(query.status());
  return files;
}

absl::Status DeleteFile(Database& database, const FileRecord& file) {
  if (!file.batch.empty()) {
    Statement lines = database.Prepare(
        "UPDATE outputs SET text = '' WHERE batch = ? AND failed = ?");
    RF_RETURN_IF_ERROR(lines.Bind(file.batch).Bind(int64_t{file.errors}).Run());
    Statement names = database.Prepare(absl::StrCat(
        "UPDATE batches SET ", file.errors ? "error_file" : "output_file",
        " = '' WHERE id = ?"));
    RF_RETURN_IF_ERROR(names.Bind(file.batch).Run());
  }
  Statement record = database.Prepare("DELETE FROM files WHERE id = ?");
  return record.Bind(file.id).Run();
}

absl::StatusOr<std::vector<FileRecord>> ListExpiredFiles(Database& database,
                                                         int64_t now_ms,
                                                         int64_t oldest_ms) {
  Statement query = database.Prepare(absl::StrCat(
      "SELECT ", kFileColumns,
      " FROM files WHERE (expires_ms > 0 AND expires_ms <= ?) OR (batch = '' "
      "AND created_ms < ?)"));
  query.Bind(now_ms).Bind(oldest_ms);
  std::vector<FileRecord> files;
  while (query.Next()) files.push_back(FileOfRow(query));
  RF_RETURN_IF_ERROR(query.status());
  return files;
}

}  // namespace ringfleet::coordinator
