// SPDX-License-Identifier: Apache-2.0
// One rank of a world of processes that does nothing but collectives, for
// tests that break it. Takes commands from stdin, a line each, and answers in
// lines on stdout; times are microseconds of the steady clock, which all
// processes of a machine share.
//
//   (at the start)                      port PORT
//   connect EPOCH RANK TRANSPORT MS HOST:PORT...
//                                       connected EPOCH AT
//                                       refused EPOCH CODE AT MESSAGE
//   run SEED FIRST COUNT MS FAULT OPERATION FRAME STALL_MS
//                                       done AT
//                                       failed OPERATION CODE LATE AT MESSAGE
//   dropped                             dropped FRAMES
//
// TRANSPORT is grpc or auto. MS is the time to connect in, and that of each
// operation; LATE is how long after the operation's deadline it failed,
// negative if before.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cluster/process/log.h"
#include "cluster/recording/flight_recorder.h"
#include "cluster/rpc/server.h"
#include "cluster/transport/link_transport.h"
#include "kernels/check.h"
#include "tests/testing/fault_script.h"
#include "tests/testing/operation_stream.h"

namespace ringfleet::testing {
namespace {

using cluster::Deadline;

constexpr uint64_t kConfig = 7;

int64_t Micros(Deadline::Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration)
      .count();
}
int64_t Now() { return Micros(Deadline::Clock::now().time_since_epoch()); }

void Answer(const std::string& line) {
  const std::string whole =
      absl::StrCat(absl::StrReplaceAll(line, {{"\n", " "}}), "\n");
  RF_CHECK(write(STDOUT_FILENO, whole.data(), whole.size()) ==
           static_cast<ssize_t>(whole.size()));
}

class Rank {
 public:
  explicit Rank(const std::string& host)
      : endpoint_({.spin = cluster::Spin::kNever, .recorder = &recorder_}) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(host + ":0", grpc::InsecureServerCredentials(),
                             &port);
    endpoint_.Register(builder);
    server_ = builder.BuildAndStart();
    RF_CHECK(server_ != nullptr);
    endpoint_.Start();
    Answer(absl::StrCat("port ", port));
  }
  ~Rank() {
    links_.reset();
    endpoint_.StopLinks();
    server_->Shutdown(std::chrono::system_clock::now());
    endpoint_.Shutdown();
  }

  void Connect(std::istringstream& arguments) {
    uint64_t epoch = 0;
    int rank = 0;
    int milliseconds = 0;
    std::string transport;
    arguments >> epoch >> rank >> transport >> milliseconds;
    cluster::CollectiveEndpoint::World world;
    world.transport = transport == "grpc" ? cluster::TransportKind::kGrpc
                                          : cluster::TransportKind::kAuto;
    for (std::string address; arguments >> address;) {
      world.rings.resize(1);
      world.rings[0].push_back(static_cast<int>(world.addresses.size()));
      world.addresses.push_back(address);
    }
    world.config_hash = kConfig;
    // The links end first: payload lies in the memory of stream and script.
    links_.reset();
    stream_.reset();
    transport_.reset();
    script_.reset();
    auto links = endpoint_.Connect(
        epoch, rank, world, Deadline::After(absl::Milliseconds(milliseconds)));
    if (!links.ok()) {
      return Answer(absl::StrCat("refused ", epoch, " ", CodeOf(links.status()),
                                 " ", Now(), " ",
                                 std::string(links.status().message())));
    }
    links_ = *std::move(links);
    script_ =
        std::make_unique<FaultScript>(links_.get(), world.addresses, kConfig);
    transport_ =
        std::make_unique<ScriptedTransport>(links_.get(), std::ref(*script_));
    Answer(absl::StrCat("connected ", epoch, " ", Now()));
  }

  void Run(std::istringstream& arguments) {
    uint64_t seed = 0;
    int first = 0;
    int count = 0;
    int milliseconds = 0;
    std::string name;
    int stall = 0;
    Fault fault;
    arguments >> seed >> first >> count >> milliseconds >> name >>
        fault.operation >> fault.frame >> stall;
    RF_CHECK(arguments && transport_ != nullptr && ParseFault(name).ok());
    fault.kind = *ParseFault(name);
    fault.stall = absl::Milliseconds(stall);
    script_->set_fault(fault);
    if (stream_ == nullptr) {
      stream_ = std::make_unique<OperationStream>(transport_.get(), &recorder_);
    }
    for (int index = first; index < first + count; ++index) {
      const bool here = index == fault.operation;
      if (here && fault.kind == FaultKind::kSkip) continue;
      script_->BeginOperation(index);
      const Deadline deadline =
          Deadline::After(absl::Milliseconds(milliseconds));
      const absl::Status status = stream_->Run(
          seed, index, here && fault.kind == FaultKind::kMisshapen, deadline);
      if (status.ok()) continue;
      const auto now = Deadline::Clock::now();
      return Answer(absl::StrCat("failed ", index, " ", CodeOf(status), " ",
                                 Micros(now - deadline.when()), " ", Now(), " ",
                                 std::string(status.message())));
    }
    Answer(absl::StrCat("done ", Now()));
  }

  void Dropped() {
    Answer(absl::StrCat("dropped ", endpoint_.dropped_frames()));
  }

 private:
  static std::string CodeOf(const absl::Status& status) {
    return absl::StatusCodeToString(status.code());
  }

  cluster::FlightRecorder recorder_;
  cluster::CollectiveEndpoint endpoint_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<FaultScript> script_;
  std::unique_ptr<ScriptedTransport> transport_;
  std::unique_ptr<OperationStream> stream_;
  std::unique_ptr<cluster::Transport> links_;
};

int Main(const std::string& host) {
  cluster::ConfigureGrpcProcess();
  Rank rank(host);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream arguments(line);
    std::string command;
    arguments >> command;
    if (command == "connect") {
      rank.Connect(arguments);
    } else if (command == "run") {
      rank.Run(arguments);
    } else if (command == "dropped") {
      rank.Dropped();
    } else {
      std::fprintf(stderr, "unknown command: %s\n", line.c_str());
      return 2;
    }
  }
  return 0;
}

}  // namespace
}  // namespace ringfleet::testing

int main(int argc, char** argv) {
  return ringfleet::testing::Main(argc > 1 ? argv[1] : "127.0.0.1");
}
