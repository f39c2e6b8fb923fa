// SPDX-License-Identifier: Apache-2.0
// Servers of a checkpoint's files on loopback. A test can make ScriptedFiles
// fail.
#ifndef RINGFLEET_TESTS_TESTING_FILE_SERVERS_H_
#define RINGFLEET_TESTS_TESTING_FILE_SERVERS_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/checkpoint/checkpoint_files_service.h"
#include "cluster/wire/crc32c.h"
#include "kernels/check.h"
#include "kernels/mutex.h"
#include "protos/checkpoint.grpc.pb.h"

namespace ringfleet::testing {

// A server for one service on a port of loopback. The service must outlive the
// server.
class LoopbackServer {
 public:
  explicit LoopbackServer(grpc::Service* service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    RF_CHECK(server_ != nullptr);
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~LoopbackServer() { Stop(); }

  // Cuts all connections, like the end of a process.
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// Serves the files of a folder like a worker that has the folder.
class FolderServer {
 public:
  explicit FolderServer(const std::string& folder) { service_.Serve(folder); }
  const std::string& address() const { return server_.address(); }
  void Stop() { server_.Stop(); }
  cluster::CheckpointFilesService& service() { return service_; }

 private:
  cluster::CheckpointFilesService service_;
  LoopbackServer server_{&service_};
};

// Serves the files of a folder under any name that a caller asks for. Stands
// for another host, on which the caller's path is `folder`.
class OtherHost {
 public:
  explicit OtherHost(const std::string& folder) : service_(folder) {}
  const std::string& address() const { return server_.address(); }
  void Stop() { server_.Stop(); }

 private:
  class Service final : public v1::CheckpointFiles::Service {
   public:
    explicit Service(const std::string& folder) : folder_(folder) {
      files_.Serve(folder);
    }
    grpc::Status List(grpc::ServerContext* context,
                      const v1::ListFilesRequest* request,
                      v1::ListFilesResponse* response) override {
      v1::ListFilesRequest here = *request;
      here.set_model(folder_);
      return files_.List(context, &here, response);
    }
    grpc::Status Read(grpc::ServerContext* context,
                      const v1::ReadFileRequest* request,
                      grpc::ServerWriter<v1::FileChunk>* writer) override {
      return files_.Read(context, request, writer);
    }

   private:
    const std::string folder_;
    cluster::CheckpointFilesService files_;
  };

  Service service_;
  LoopbackServer server_{&service_};
};

// Serves texts from memory, in chunks of `chunk_bytes` bytes. A test may change
// chunks.
class ScriptedFiles final : public v1::CheckpointFiles::Service {
 public:
  // Called with each chunk before it is sent. May change the chunk. An error
  // ends the call. `call` counts calls of Read from 0.
  using Hook = std::function<grpc::Status(int call, v1::FileChunk*,
                                          grpc::ServerContext*)>;

  ScriptedFiles(std::map<std::string, std::string> files, size_t chunk_bytes,
                std::string fingerprint = "f00d")
      : files_(std::move(files)),
        chunk_bytes_(chunk_bytes),
        fingerprint_(std::move(fingerprint)) {}

  void SetHook(Hook hook) {
    MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }
  // Requests of all calls of Read, by arrival.
  std::vector<v1::ReadFileRequest> requests() const {
    MutexLock lock(&mu_);
    return requests_;
  }

  grpc::Status List(grpc::ServerContext*, const v1::ListFilesRequest*,
                    v1::ListFilesResponse* response) override {
    response->set_fingerprint(fingerprint_);
    for (const auto& [name, text] : files_) {
      v1::ServedFile* file = response->add_files();
      file->set_name(name);
      file->set_bytes(text.size());
    }
    return grpc::Status::OK;
  }

  grpc::Status Read(grpc::ServerContext* context,
                    const v1::ReadFileRequest* request,
                    grpc::ServerWriter<v1::FileChunk>* writer) override {
    Hook hook;
    int call = 0;
    {
      MutexLock lock(&mu_);
      hook = hook_;
      call = static_cast<int>(requests_.size());
      requests_.push_back(*request);
    }
    const std::string& text = files_.at(request->file());
    std::string all;
    for (uint64_t i = 0; i < request->count(); ++i) {
      all += text.substr(request->offset() + i * request->stride(),
                         request->size());
    }
    for (uint64_t at = request->from(); at < all.size();) {
      v1::FileChunk chunk;
      chunk.set_offset(at);
      chunk.set_data(all.substr(at, chunk_bytes_));
      chunk.set_crc32c(
          cluster::ExtendCrc32c(0, chunk.data().data(), chunk.data().size()));
      at += chunk.data().size();
      if (hook != nullptr) {
        const grpc::Status status = hook(call, &chunk, context);
        if (!status.ok()) return status;
      }
      if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

 private:
  const std::map<std::string, std::string> files_;
  const size_t chunk_bytes_;
  const std::string fingerprint_;
  mutable Mutex mu_;
  Hook hook_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ReadFileRequest> requests_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ringfleet::testing

#endif  // RINGFLEET_TESTS_TESTING_FILE_SERVERS_H_
