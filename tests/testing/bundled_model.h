// SPDX-License-Identifier: Apache-2.0
#ifndef RINGFLEET_TESTS_TESTING_BUNDLED_MODEL_H_
#define RINGFLEET_TESTS_TESTING_BUNDLED_MODEL_H_

#include <string>

namespace ringfleet::testing {

// Returns the path of a folder in tests/models, such as "tiny-v3".
inline std::string BundledModel(const std::string& name) {
  return RINGFLEET_TEST_MODELS "/" + name;
}

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_BUNDLED_MODEL_H_
