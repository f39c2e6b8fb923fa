// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/trace_call.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "cluster/process/status.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::coordinator::cli {

TraceCall::~TraceCall() {
  if (stream_ == nullptr) return;
  call_->context()->TryCancel();
  v1::TraceProgress progress;
  while (stream_->Read(&progress)) {
  }
  stream_->Finish();
}

absl::Status TraceCall::Open(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  RF_ASSIGN_OR_RETURN(file_, TraceFile::Open(path));
  return absl::OkStatus();
}

absl::Status TraceCall::Start(v1::Coordinator::Stub& stub) {
  if (file_ == nullptr) return absl::OkStatus();
  call_ = std::make_unique<InterruptibleCall>();
  stream_ = stub.Trace(call_->context());
  stream_->Write(v1::TraceRequest());  // A failure shows in Read and Finish.
  v1::TraceProgress progress;
  if (stream_->Read(&progress)) return file_->Add(progress);
  const auto stream = std::move(stream_);
  const absl::Status status = cluster::FromGrpc(stream->Finish());
  RF_RETURN_IF_ERROR(Interrupt::Get().status());
  if (!status.ok()) return status;
  return absl::UnavailableError("coordinator: the trace ended early");
}

absl::Status TraceCall::ReadAll() {
  stream_->WritesDone();
  v1::TraceProgress progress;
  absl::Status taken;
  while (stream_->Read(&progress)) {
    if (taken.ok()) taken = file_->Add(progress);
  }
  const auto stream = std::move(stream_);
  const absl::Status status = cluster::FromGrpc(stream->Finish());
  RF_RETURN_IF_ERROR(taken);
  return status;
}

absl::Status TraceCall::Finish() {
  if (stream_ == nullptr) return absl::OkStatus();
  RF_RETURN_IF_ERROR(ReadAll());
  RF_RETURN_IF_ERROR(file_->Finish());
  std::string line =
      absl::StrCat(file_->events(), " trace events are in ", file_->path());
  if (file_->dropped() > 0) {
    absl::StrAppend(&line, "; no room for ", file_->dropped(), " older ones");
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  return absl::OkStatus();
}

}  // namespace ringfleet::coordinator::cli
