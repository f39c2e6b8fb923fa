// SPDX-License-Identifier: Apache-2.0
// Draws a map of the load of a fleet's experts in characters.
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
  bool color = false;  // True: cells are colours (ANSI), else characters.
  int columns = 80;    // Width of the terminal.
};

// Returns the style for standard output. The style has colours if standard
// output is a terminal and NO_COLOR is not set.
MapStyle MapStyleOfOutput();

// Returns a legend and a line for each layer. The line begins with the tokens
// of the layer's busiest expert, divided by the mean over experts. Then follows
// a cell for each expert. A cell shows the expert's tokens divided by the mean.
// A line that is longer than the terminal continues on the next line after a
// power of two of cells.
std::string ExpertMap(const std::vector<ExpertRow>& rows,
                      const MapStyle& style);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_
