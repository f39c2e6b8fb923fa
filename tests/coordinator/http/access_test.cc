// SPDX-License-Identifier: Apache-2.0
// Keys and certificates from files that change.
#include "coordinator/http/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/http/http_face.h"
#include "coordinator/http/tls_identity.h"
#include "tests/coordinator/http/fake_jobs.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/sockets.h"

namespace ringfleet::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct FreeOpenssl {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
template <typename T>
using Ptr = std::unique_ptr<T, FreeOpenssl>;

struct KeyPair {
  std::string certificate, key;  // PEM.
};

std::string TextOfBio(BIO* bio) {
  char* data = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  return {data, size};
}

// Makes a certificate that signs itself, valid from `from` to `to` seconds from
// the time of the call.
KeyPair MakeKeyPair(const std::string& name, int64_t from = -60,
                    int64_t to = 3600) {
  const Ptr<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Ptr<X509> certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), to);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(
      subject, "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  KeyPair pair;
  const Ptr<BIO> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate.get());
  pair.certificate = TextOfBio(bio.get());
  const Ptr<BIO> key_bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(key_bio.get(), key.get(), nullptr, nullptr, 0,
                           nullptr, nullptr);
  pair.key = TextOfBio(key_bio.get());
  return pair;
}

// A connection over TLS. Waits a minute at most for bytes.
class TlsClient {
 public:
  explicit TlsClient(int port, const KeyPair* own = nullptr,
                     int version = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method())),
        socket_(testing::ConnectTo(absl::StrCat("127.0.0.1:", port))) {
    SSL_CTX_set_max_proto_version(context_.get(), version);
    if (own != nullptr) Show(*own);
    const timeval limit = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_.fd());
    if (SSL_connect(ssl_.get()) != 1) ssl_.reset();
  }

  // Sends a request. `key` may be empty.
  bool Send(const std::string& method, const std::string& path,
            const std::string& key = "", const std::string& body = "") {
    if (ssl_ == nullptr) return false;
    const std::string request = absl::StrCat(
        method, " ", path, " HTTP/1.1\r\nHost: a\r\n",
        key.empty() ? "" : absl::StrCat("Authorization: Bearer ", key, "\r\n"),
        "Content-Type: application/json\r\nContent-Length: ", body.size(),
        "\r\n\r\n", body);
    return SSL_write(ssl_.get(), request.data(),
                     static_cast<int>(request.size())) > 0;
  }
  // Reads until `text` has come; takes it with what came before. Returns false
  // at the connection's end.
  bool ReadThrough(const std::string& text) {
    size_t at;
    while ((at = received_.find(text)) == std::string::npos) {
      if (!Receive()) return false;
    }
    received_.erase(0, at + text.size());
    return true;
  }
  // Calls an endpoint without a body. Returns the status; 0: no whole answer.
  int Call(const std::string& path, const std::string& key = "") {
    if (!Send("GET", path, key) || !ReadThrough("HTTP/1.1 ")) return 0;
    const int status = std::atoi(received_.c_str());
    if (!ReadThrough("Content-Length: ")) return 0;
    const auto length = static_cast<size_t>(std::atoi(received_.c_str()));
    if (!ReadThrough("\r\n\r\n")) return 0;
    while (received_.size() < length) {
      if (!Receive()) return 0;
    }
    received_.erase(0, length);
    return status;
  }
  // Returns the name of the server's certificate.
  std::string server() const {
    const Ptr<X509> certificate(SSL_get1_peer_certificate(ssl_.get()));
    char name[64] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()),
                              NID_commonName, name, sizeof(name));
    return name;
  }

 private:
  bool Receive() {
    char bytes[4096];
    const int got = SSL_read(ssl_.get(), bytes, sizeof(bytes));
    if (got > 0) received_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }
  void Show(const KeyPair& own) {
    const Ptr<BIO> certificate(BIO_new_mem_buf(own.certificate.data(), -1));
    const Ptr<X509> x509(
        PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr));
    const Ptr<BIO> key_bio(BIO_new_mem_buf(own.key.data(), -1));
    const Ptr<EVP_PKEY> key(
        PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr));
    SSL_CTX_use_certificate(context_.get(), x509.get());
    SSL_CTX_use_PrivateKey(context_.get(), key.get());
  }

  const Ptr<SSL_CTX> context_;
  const testing::Socket socket_;
  Ptr<SSL> ssl_;  // Null: the handshake failed.
  std::string received_;
};

// Calls GET /health over TLS. Returns the name of the server's certificate, or
// "" if the server did not answer.
std::string NameOfServer(int port, const KeyPair* client = nullptr,
                         int version = TLS1_3_VERSION) {
  TlsClient connection(port, client, version);
  return connection.Call("/health") == 200 ? connection.server() : "";
}

class AccessTest : public ::testing::Test {
 protected:
  // Puts a file in place at once, as rotations do.
  std::string Put(const std::string& name, const std::string& text) {
    const std::string path = folder_.File(name);
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }
  void PutPair(const KeyPair& pair) {
    options_.tls_certificate_file = Put("cert.pem", pair.certificate);
    options_.tls_key_file = Put("key.pem", pair.key);
  }

  // Starts a server with `options_`.
  void StartFace() {
    auto model = ServedModel::Load(RINGFLEET_TEST_MODELS "/tiny-v3");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    HttpOptions options;
    options.listen.port = 0;
    options.access = options_;
    auto face = HttpFace::Start(options, model_.get(), "tiny-v3", &jobs_);
    ASSERT_TRUE(face.ok()) << face.status();
    face_ = *std::move(face);
  }

  testing::TempDir folder_;
  AccessOptions options_;
  FakeJobs jobs_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<HttpFace> face_;
};

HttpRequest WithKey(const std::string& key) {
  HttpRequest request;
  request.headers.push_back({"Authorization", "Bearer " + key});
  return request;
}

TEST_F(AccessTest, KeysAreReadAgainWhenTheyChange) {
  options_.api_key_file = Put("keys", "alice: alice-key\nbob: bob-key-1\n");
  const auto access = Access::Open(options_);
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_EQ(*(*access)->KeyNameOf(WithKey("alice-key")), "alice");
  EXPECT_EQ(*(*access)->KeyNameOf(WithKey("bob-key-1")), "bob");
  Put("keys", "bob: bob-key-2\n");
  (*access)->Reload();
  EXPECT_FALSE((*access)->KeyNameOf(WithKey("alice-key")).ok());
  EXPECT_EQ(*(*access)->KeyNameOf(WithKey("bob-key-2")), "bob");
  // A file that cannot be read changes nothing.
  Put("keys", "nonsense\n");
  (*access)->Reload();
  EXPECT_EQ(*(*access)->KeyNameOf(WithKey("bob-key-2")), "bob");
  std::filesystem::remove(options_.api_key_file);
  (*access)->Reload();
  EXPECT_EQ(*(*access)->KeyNameOf(WithKey("bob-key-2")), "bob");
  const Access::Figures figures = (*access)->figures();
  EXPECT_EQ(figures.keys.taken, 2u);
  EXPECT_EQ(figures.keys.refused, 2u);
  EXPECT_EQ(figures.tls.taken, 0u);
  EXPECT_FALSE(figures.certificate_end.has_value());
}

TEST_F(AccessTest, AKeyFileIsCheckedAndNoErrorShowsAKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no key"},
      {"# only\n\n", "no key"},
      {"secret-key-1\n", "line 1: want 'NAME: KEY'"},
      {"a: long-enough\nb: tiny\n", "line 2: want"},
      {"a: secret key\n", "line 1: want"},
      {"a: secret-key-1\na: secret-key-2\n", "line 2: its name or its key"},
      {"a: secret-key-1\nb: secret-key-1\n", "line 2: its name or its key"},
  };
  for (const auto& [text, message] : cases) {
    options_.api_key_file = Put("keys", text);
    const auto status = Access::Open(options_).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
    EXPECT_THAT(std::string(status.message()),
                ::testing::Not(HasSubstr("secret-key")));
  }
  options_.api_key_file = folder_.File("missing");
  EXPECT_FALSE(Access::Open(options_).ok());
}

TEST_F(AccessTest, ACertificateIsCheckedWithItsKey) {
  const KeyPair good = MakeKeyPair("good"), other = MakeKeyPair("other");
  const auto message = [](const KeyPair& pair, const std::string& ca = "") {
    return std::string(
        MakeTlsContext(pair.certificate, pair.key, ca, absl::Now())
            .status()
            .message());
  };
  EXPECT_EQ(message(good), "");
  EXPECT_EQ(message(good, other.certificate), "");
  EXPECT_THAT(message({good.certificate, other.key}),
              HasSubstr("key: not that of the certificate"));
  EXPECT_THAT(message({"", good.key}), HasSubstr("no certificate in PEM"));
  EXPECT_THAT(message({good.certificate, "x"}), HasSubstr("no private key"));
  EXPECT_THAT(message(good, "x"), HasSubstr("client_ca: no certificate"));
  EXPECT_THAT(message(MakeKeyPair("old", -100, -10)), HasSubstr("has expired"));
  EXPECT_THAT(message(MakeKeyPair("new", 100, 200)),
              HasSubstr("not valid yet"));
  options_.tls_certificate_file = Put("cert.pem", good.certificate);
  EXPECT_THAT(std::string(Access::Open(options_).status().message()),
              HasSubstr("a certificate without a key"));
}

TEST_F(AccessTest, APairThatDoesNotFitIsNotTaken) {
  const absl::Time began = absl::Now();
  PutPair(MakeKeyPair("first"));
  const auto access = Access::Open(options_);
  ASSERT_TRUE(access.ok()) << access.status();
  const HttpServer::TlsContext first = (*access)->tls();
  const KeyPair second = MakeKeyPair("second", -60, 7200);
  Put("cert.pem", second.certificate);
  ::testing::internal::CaptureStderr();
  (*access)->Reload();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("cert.pem: "), HasSubstr("not that of the"),
                    HasSubstr("the last good state stays")));
  EXPECT_EQ((*access)->tls(), first);
  EXPECT_EQ((*access)->figures().tls.refused, 1u);
  EXPECT_LT(*(*access)->figures().certificate_end, began + absl::Hours(1.5));
  Put("key.pem", second.key);
  (*access)->Reload();
  EXPECT_NE((*access)->tls(), first);
  EXPECT_EQ((*access)->figures().tls.taken, 2u);
  EXPECT_GT(*(*access)->figures().certificate_end, began + absl::Hours(1.5));
}

TEST_F(AccessTest, ConnectionsAreTlsOfTheNewestVersion) {
  PutPair(MakeKeyPair("server"));
  ASSERT_NO_FATAL_FAILURE(StartFace());
  EXPECT_THAT(face_->url(), HasSubstr("https://"));
  EXPECT_EQ(NameOfServer(face_->port()), "server");
  EXPECT_EQ(NameOfServer(face_->port(), nullptr, TLS1_2_VERSION), "");
}

// Certificates and keys change while 50 streams run.
TEST_F(AccessTest, StreamsGoOnWhileCertificatesAndKeysChange) {
  constexpr size_t kStreams = 50;
  constexpr int kRotations = 3;
  PutPair(MakeKeyPair("pair 0"));
  options_.api_key_file = Put("keys", "alice: alice-key-0\n");
  ASSERT_NO_FATAL_FAILURE(StartFace());
  const int port = face_->port();
  std::vector<std::unique_ptr<TlsClient>> streams;
  for (size_t i = 0; i < kStreams; ++i) {
    streams.push_back(std::make_unique<TlsClient>(port));
    ASSERT_TRUE(streams.back()->Send("POST", "/v1/completions", "alice-key-0",
                                     R"({"prompt": "x", "stream": true})"));
  }
  ASSERT_NE(jobs_.Await(kStreams - 1), nullptr);
  const auto expect_a_token = [&] {
    for (size_t i = 0; i < kStreams; ++i) {
      jobs_.Await(i)->OnToken({.id = 40, .logprob = -1, .top = {}});
    }
    for (const auto& stream : streams) {
      EXPECT_TRUE(stream->ReadThrough("data: {"));
    }
  };
  expect_a_token();
  TlsClient early(port);
  EXPECT_EQ(early.Call("/version", "alice-key-0"), 200);
  for (int i = 1; i <= kRotations; ++i) {
    const std::string name = absl::StrCat("pair ", i);
    const std::string old_key = absl::StrCat("alice-key-", i - 1);
    const std::string new_key = absl::StrCat("alice-key-", i);
    PutPair(MakeKeyPair(name));
    Put("keys", absl::StrCat("alice: ", new_key, "\n"));
    const auto deadline = testing::Soon();
    // Each request meanwhile has one of the two pairs, and an answer.
    std::string server;
    while ((server = NameOfServer(port)) != name && !deadline.Expired()) {
      EXPECT_EQ(server, absl::StrCat("pair ", i - 1));
    }
    EXPECT_EQ(server, name);
    while (early.Call("/version", new_key) != 200 && !deadline.Expired()) {
    }
    EXPECT_EQ(early.Call("/version", new_key), 200);
    EXPECT_EQ(early.Call("/version", old_key), 401);
    EXPECT_EQ(early.server(), "pair 0");
    EXPECT_EQ(TlsClient(port).Call("/version", old_key), 401);
    EXPECT_EQ(TlsClient(port).Call("/version", new_key), 200);
    expect_a_token();
  }
  for (size_t i = 0; i < kStreams; ++i) {
    jobs_.Await(i)->OnFinished(v1::FINISH_REASON_LENGTH, {});
  }
  for (const auto& stream : streams) {
    EXPECT_TRUE(stream->ReadThrough("data: [DONE]"));
  }
}

TEST_F(AccessTest, ClientsShowACertificateWhereAskedFor) {
  PutPair(MakeKeyPair("server"));
  const KeyPair client = MakeKeyPair("client"),
                stranger = MakeKeyPair("stranger");
  options_.tls_client_ca_file = Put("ca.pem", client.certificate);
  ASSERT_NO_FATAL_FAILURE(StartFace());
  EXPECT_EQ(NameOfServer(face_->port(), &client), "server");
  EXPECT_EQ(NameOfServer(face_->port()), "");
  EXPECT_EQ(NameOfServer(face_->port(), &stranger), "");
}

}  // namespace
}  // namespace ringfleet::coordinator
