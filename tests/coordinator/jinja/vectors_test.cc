// SPDX-License-Identifier: Apache-2.0
// Templates with what Jinja makes of them, recorded in vectors.json beside this
// file. "about" of that file tells how.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "coordinator/chat/chat_template.h"

namespace ringfleet::coordinator {
namespace {

TEST(JinjaVectorsTest, TemplatesRenderAsInJinja) {
  std::ifstream file(RINGFLEET_SOURCE_DIR
                     "/tests/coordinator/jinja/vectors.json");
  const auto vectors = nlohmann::ordered_json::parse(file);
  Conversation conversation;
  conversation.variables = vectors.at("variables");
  ASSERT_GE(vectors.at("vectors").size(), 600u);
  for (const auto& vector : vectors.at("vectors")) {
    const auto source = vector.at(0).get<std::string>();
    const auto parsed = ChatTemplate::Parse(source, "", "");
    absl::StatusOr<MarkedText> prompt =
        parsed.ok() ? (*parsed)->Render(conversation,
                                        absl::CivilSecond(2026, 3, 7, 4, 5, 9))
                    : parsed.status();
    if (vector.at(1).is_null()) {
      EXPECT_FALSE(prompt.ok()) << source << "\n" << prompt->bytes();
    } else {
      ASSERT_TRUE(prompt.ok()) << source << "\n" << prompt.status();
      EXPECT_EQ(prompt->bytes(), vector.at(1).get<std::string>()) << source;
    }
  }
}

}  // namespace
}  // namespace ringfleet::coordinator
