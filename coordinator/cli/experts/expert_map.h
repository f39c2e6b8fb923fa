// SPDX-License-Identifier: Apache-2.0
// What a fleet's experts had to do, as a picture of characters.
#ifndef RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_
#define RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_

#include <string>
#include <vector>

namespace ringfleet::coordinator::cli {

struct ExpertRow {
  std::string layer;
  std::vector<double> tokens;  // Of each expert, in any unit.
};

struct MapStyle {
  bool color = false;  // Cells in colours, by ANSI escapes; else characters.
  int columns = 80;    // Of the terminal.
};

// Of standard output: colours where it is a terminal and NO_COLOR is unset.
MapStyle MapStyleOfOutput();

// A legend and a line for each layer, with the largest expert's tokens over the
// mean of the layer, and a cell for each expert that shows its tokens over that
// mean. Lines that are too long for the terminal are folded at a power of two.
std::string ExpertMap(const std::vector<ExpertRow>& rows,
                      const MapStyle& style);

}  // namespace ringfleet::coordinator::cli

#endif  // RINGFLEET_COORDINATOR_CLI_EXPERTS_EXPERT_MAP_H_
