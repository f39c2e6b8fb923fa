// SPDX-License-Identifier: Apache-2.0
// The page at `/`: a chat and the fleet's state. Its files are part of the
// program.
#ifndef RINGFLEET_COORDINATOR_PAGE_PAGE_H_
#define RINGFLEET_COORDINATOR_PAGE_PAGE_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "protos/cluster.pb.h"

namespace ringfleet::coordinator {

struct PageFile {
  absl::string_view content_type;
  absl::string_view text;
};

// Forbids scripts and styles that are not files of the page, and other hosts.
inline constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

// Returns the file at a path: "/", "/page/app.js". Nothing: there is none.
std::optional<PageFile> FindPageFile(absl::string_view path);

// Returns what the page shows of a fleet at `now`, as a JSON object.
std::string FleetJson(const v1::ClusterState& state, absl::Time now);

// The files, from a source that the build makes.
extern const absl::string_view kPage_index_html;
extern const absl::string_view kPage_style_css;
extern const absl::string_view kPage_app_js;

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_PAGE_PAGE_H_
