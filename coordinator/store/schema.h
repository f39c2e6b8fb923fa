// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_COORDINATOR_STORE_SCHEMA_H_
#define RINGFLEET_COORDINATOR_STORE_SCHEMA_H_

#include "absl/status/status.h"
#include "coordinator/store/sqlite.h"

namespace ringfleet::coordinator {

// Number of the newest schema. A database has the number of its own in
// `PRAGMA user_version`; 0: it is empty.
extern const int kSchemaVersion;

// Brings a database to the newest schema, in one transaction. `path` appears in
// errors. FAILED_PRECONDITION: the schema is newer than this program's.
absl::Status MigrateSchema(const std::string& path, Database& database);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_STORE_SCHEMA_H_
