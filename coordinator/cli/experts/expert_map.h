// SPDX-License-Identifier: Apache-2.0
// A map of the load of a fleet's experts, drawn in characters.
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_

#include <string>
#include <vector>

namespace ringfleet::coordinator::cli {

struct ExpertRow {
  std::string layer;
  std::vector<double> tokens;  // One for each expert, in any unit.
};

struct MapStyle {
  bool color = false;  // Cells in colours, by ANSI escapes; else characters.
  int columns = 80;    // Width of the terminal.
};

// Returns the style for standard output: colours on a terminal unless NO_COLOR
// is set.
MapStyle MapStyleOfOutput();

// Returns a legend and a line for each layer. The line has the largest expert's
// tokens over the layer's mean, and a cell for each expert that shows its
// tokens over the mean. Lines longer than the terminal are folded at a power of
// two.
std::string ExpertMap(const std::vector<ExpertRow>& rows,
                      const MapStyle& style);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_
