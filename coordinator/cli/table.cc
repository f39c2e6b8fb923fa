// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/output.h"

namespace ringfleet::coordinator::cli {
namespace {

std::string Padded(const std::string& cell, const TableColumn& column) {
  const std::string text = OneLine(cell);
  // Continuation bytes of UTF-8 take no room.
  const auto characters =
      std::count_if(text.begin(), text.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
      });
  const std::string padding(
      std::max<std::ptrdiff_t>(0, column.width - characters), ' ');
  return column.right ? padding + text : text + padding;
}

}  // namespace

Table::Table(std::vector<TableColumn> columns) : columns_(std::move(columns)) {}

std::string Table::Header() const {
  std::vector<std::string> names;
  std::string rules = "|";
  for (const TableColumn& column : columns_) {
    names.push_back(column.name);
    const int dashes = column.width > 0 ? column.width - column.right : 3;
    absl::StrAppend(&rules, column.width > 0 ? " " : "",
                    std::string(dashes, '-'), column.right ? ":" : "",
                    column.width > 0 ? " |" : "|");
  }
  return absl::StrCat(Row(names), rules, "\n");
}

std::string Table::Row(const std::vector<std::string>& cells) const {
  std::string line = "|";
  for (size_t i = 0; i < columns_.size(); ++i) {
    absl::StrAppend(&line, " ", Padded(cells[i], columns_[i]), " |");
  }
  return line + "\n";
}

}  // namespace ringfleet::coordinator::cli
