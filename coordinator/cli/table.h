// SPDX-License-Identifier: Apache-2.0
// Markdown tables for the reports of verbs.
#ifndef RINGFLEET_COORDINATOR_CLI_TABLE_H_
#define RINGFLEET_COORDINATOR_CLI_TABLE_H_

#include <string>
#include <vector>

namespace ringfleet::coordinator::cli {

struct TableColumn {
  std::string name;
  bool right = false;  // True: cells are aligned to the right.
  int width = 0;       // Cells are padded to this width. 0: no padding.
};

class Table {
 public:
  explicit Table(std::vector<TableColumn> columns);

  // Returns the two lines of the header: the names of the columns, and the
  // rule.
  std::string Header() const;
  // Returns one row. Requires a cell for each column. Cells lose their control
  // characters, as by OneLine.
  std::string Row(const std::vector<std::string>& cells) const;

  // Appends a row to text().
  void Add(const std::vector<std::string>& cells) { rows_ += Row(cells); }
  bool empty() const { return rows_.empty(); }
  // Returns the header and all rows that were added.
  std::string text() const { return Header() + rows_; }

 private:
  const std::vector<TableColumn> columns_;
  std::string rows_;
};

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_TABLE_H_
