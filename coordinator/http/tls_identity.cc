// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/tls_identity.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"

namespace ringfleet::coordinator {
namespace {

struct OpensslFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
template <typename T>
using Owned = std::unique_ptr<T, OpensslFree>;

Owned<BIO> Reader(const std::string& text) {
  return Owned<BIO>(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Never asks the terminal for the password of an encrypted key.
int NoPassword(char*, int, int, void*) { return -1; }

absl::Status PemError(absl::string_view what) {
  const unsigned long code = ERR_peek_last_error();  // NOLINT
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(
      what, reason == nullptr ? "" : " (", reason == nullptr ? "" : reason,
      reason == nullptr ? "" : ")"));
}

// Calls `use` with each certificate of a text.
template <typename Use>
absl::Status ForEachCertificate(const std::string& text, absl::string_view what,
                                const Use& use) {
  const Owned<BIO> reader = Reader(text);
  int count = 0;
  while (true) {
    const Owned<X509> certificate(
        PEM_read_bio_X509(reader.get(), nullptr, NoPassword, nullptr));
    if (certificate == nullptr) break;
    if (!use(certificate.get(), count++)) {
      return PemError(absl::StrCat(what, ": unusable"));
    }
  }
  ERR_clear_error();  // The end of the text.
  if (count > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": no certificate in PEM"));
}

}  // namespace

absl::StatusOr<HttpServer::TlsContext> MakeTlsContext(
    const std::string& certificates, const std::string& key,
    const std::string& client_ca, absl::Time now) {
  ERR_clear_error();
  const HttpServer::TlsContext context(SSL_CTX_new(TLS_server_method()),
                                       SSL_CTX_free);
  if (context == nullptr) return PemError("TLS: no context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  const time_t seconds = absl::ToTimeT(now);
  std::string dates;
  absl::Status status = ForEachCertificate(
      certificates, "certificate", [&](X509* certificate, int index) {
        if (index > 0) {
          return SSL_CTX_add1_chain_cert(context.get(), certificate) == 1;
        }
        time_t at = seconds;
        if (X509_cmp_time(X509_get0_notBefore(certificate), &at) >= 0) {
          dates = "is not valid yet";
        }
        at = seconds;
        if (X509_cmp_time(X509_get0_notAfter(certificate), &at) <= 0) {
          dates = "has expired";
        }
        return SSL_CTX_use_certificate(context.get(), certificate) == 1;
      });
  if (!status.ok()) return status;
  if (!dates.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("certificate: ", dates));
  }
  const Owned<BIO> reader = Reader(key);
  const Owned<EVP_PKEY> private_key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassword, nullptr));
  if (private_key == nullptr) return PemError("key: no private key in PEM");
  if (SSL_CTX_use_PrivateKey(context.get(), private_key.get()) != 1 ||
      SSL_CTX_check_private_key(context.get()) != 1) {
    return PemError("key: not that of the certificate");
  }
  if (!client_ca.empty()) {
    status =
        ForEachCertificate(client_ca, "client_ca", [&](X509* certificate, int) {
          return X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()),
                                     certificate) == 1 &&
                 SSL_CTX_add_client_CA(context.get(), certificate) == 1;
        });
    if (!status.ok()) return status;
    SSL_CTX_set_verify(context.get(),
                       SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       nullptr);
    // Sessions that are resumed keep the client's certificate.
    constexpr unsigned char kSessionContext[] = "ringfleet";
    SSL_CTX_set_session_id_context(context.get(), kSessionContext,
                                   sizeof(kSessionContext) - 1);
  }
  return context;
}

absl::Time CertificateEnd(const HttpServer::TlsContext& context) {
  tm end = {};
  ASN1_TIME_to_tm(X509_get0_notAfter(SSL_CTX_get0_certificate(context.get())),
                  &end);
  return absl::FromTM(end, absl::UTCTimeZone());
}

}  // namespace ringfleet::coordinator
