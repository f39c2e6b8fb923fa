// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/experts/expert_map.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ringfleet::coordinator::cli {
namespace {

// Cells by tokens over the layer's mean, finest around 1. Colours are those of
// xterm's palette of 256: grey, blue to green below the mean, yellow to red
// above it.
struct Shade {
  double least;  // Tokens over the mean.
  char character;
  int color;
};
constexpr Shade kShades[] = {
    {0, '.', 236},   {0.125, ':', 17}, {0.25, '-', 18},  {0.5, '=', 25},
    {0.75, '+', 30}, {1, 'x', 70},     {1.25, 'o', 184}, {1.5, 'O', 214},
    {2, '#', 202},   {4, '@', 196},
};

constexpr int kLabelColumns = 16;  // "layer max/mean  "
constexpr int kLeastCells = 16;    // In a line, however narrow the terminal.

std::string Cell(const Shade& shade, const MapStyle& style) {
  if (!style.color) return std::string(1, shade.character);
  return absl::StrCat("\033[48;5;", shade.color, "m \033[0m");
}

const Shade& ShadeOf(double tokens, double mean) {
  const Shade* found = &kShades[0];
  for (const Shade& shade : kShades) {
    if (mean > 0 && tokens >= shade.least * mean) found = &shade;
  }
  return *found;
}

std::string MapLegend(const MapStyle& style) {
  std::string legend = "tokens of an expert over its layer's mean, at least:";
  for (const Shade& shade : kShades) {
    absl::StrAppendFormat(&legend, "  %s %g", Cell(shade, style), shade.least);
  }
  return legend + "\n";
}

}  // namespace

MapStyle MapStyleOfOutput() {
  MapStyle style;
  if (isatty(STDOUT_FILENO) != 1) return style;
  const char* no_color = std::getenv("NO_COLOR");
  style.color = no_color == nullptr || *no_color == '\0';
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.columns = size.ws_col;
  }
  return style;
}

std::string ExpertMap(const std::vector<ExpertRow>& rows,
                      const MapStyle& style) {
  size_t cells = kLeastCells;
  while (static_cast<int>(2 * cells) <= style.columns - kLabelColumns) {
    cells *= 2;
  }
  std::string map =
      absl::StrCat(MapLegend(style), "layer max/mean  experts from 0 on\n");
  for (const ExpertRow& row : rows) {
    const double sum =
        std::accumulate(row.tokens.begin(), row.tokens.end(), 0.0);
    const double mean = sum / static_cast<double>(row.tokens.size());
    const double most =
        row.tokens.empty()
            ? 0
            : *std::max_element(row.tokens.begin(), row.tokens.end());
    absl::StrAppendFormat(&map, "%5s %8s  ", row.layer,
                          sum > 0 ? absl::StrFormat("%.2f", most / mean) : "-");
    for (size_t expert = 0; expert < row.tokens.size(); ++expert) {
      if (expert > 0 && expert % cells == 0) {
        absl::StrAppend(&map, "\n", std::string(kLabelColumns, ' '));
      }
      map += Cell(ShadeOf(row.tokens[expert], mean), style);
    }
    map += "\n";
  }
  return map;
}

}  // namespace ringfleet::coordinator::cli
