// SPDX-License-Identifier: Apache-2.0
// The certificate that the HTTP port shows, as a checked pair with its key.
#ifndef RINGFLEET_COORDINATOR_HTTP_TLS_IDENTITY_H_
#define RINGFLEET_COORDINATOR_HTTP_TLS_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/http/http_server.h"

namespace ringfleet::coordinator {

// Makes a context for TLS 1.3 from PEM texts: a chain with the server's
// certificate first, and its key. `client_ca` not empty: clients must show a
// certificate that one of its authorities has signed.
//
// Errors: INVALID_ARGUMENT: a text is not PEM, the key is not that of the
// certificate, or the certificate is not valid at `now`.
absl::StatusOr<HttpServer::TlsContext> MakeTlsContext(
    const std::string& certificates, const std::string& key,
    const std::string& client_ca, absl::Time now);

// Returns when the server's certificate ends. Requires a context of
// MakeTlsContext.
absl::Time CertificateEnd(const HttpServer::TlsContext& context);

}  // namespace ringfleet::coordinator

#endif  // RINGFLEET_COORDINATOR_HTTP_TLS_IDENTITY_H_
