// SPDX-License-Identifier: Apache-2.0
#include "coordinator/reflection/reflection_protocol.h"

#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/process/status_macros.h"
#include "coordinator/reflection/generic_call.h"
#include "kernels/check.h"

namespace ringfleet::coordinator {
namespace {

namespace pb = google::protobuf;

constexpr char kReflectionV1Alpha[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr char kReflectionV1[] =
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

// The messages in use of grpc/reflection/v1alpha/reflection.proto of the gRPC
// repository. Both versions of the protocol have these messages.
constexpr char kReflectionProto[] = R"pb(
  name: "reflection.proto"
  package: "reflection"
  message_type {
    name: "Request"
    field {
      name: "file_by_filename"
      number: 3
      type: TYPE_STRING
      oneof_index: 0
    }
    field {
      name: "file_containing_symbol"
      number: 4
      type: TYPE_STRING
      oneof_index: 0
    }
    field { name: "list_services" number: 7 type: TYPE_STRING oneof_index: 0 }
    oneof_decl { name: "message_request" }
  }
  message_type {
    name: "Response"
    field { name: "files" number: 4 type_name: "Files" }
    field { name: "services" number: 6 type_name: "Services" }
    field { name: "error" number: 7 type_name: "Error" }
  }
  message_type {
    name: "Files"
    field {
      name: "file_descriptor_proto"
      number: 1
      type: TYPE_BYTES
      label: LABEL_REPEATED
    }
  }
  message_type {
    name: "Services"
    field {
      name: "service"
      number: 1
      type_name: "Service"
      label: LABEL_REPEATED
    }
  }
  message_type {
    name: "Service"
    field { name: "name" number: 1 type: TYPE_STRING }
  }
  message_type {
    name: "Error"
    field { name: "code" number: 1 type: TYPE_INT32 }
    field { name: "message" number: 2 type: TYPE_STRING }
  }
)pb";

// The messages above, built once.
class ReflectionMessages {
 public:
  static std::unique_ptr<pb::Message> New(const char* name) {
    static auto* const messages = new ReflectionMessages;
    return std::unique_ptr<pb::Message>(
        messages->factory_
            .GetPrototype(messages->file_->FindMessageTypeByName(name))
            ->New());
  }

 private:
  ReflectionMessages() {
    pb::FileDescriptorProto proto;
    RF_CHECK(pb::TextFormat::ParseFromString(kReflectionProto, &proto));
    file_ = pool_.BuildFile(proto);
    RF_CHECK(file_ != nullptr);
  }

  pb::DescriptorPool pool_;
  pb::DynamicMessageFactory factory_;
  const pb::FileDescriptor* file_ = nullptr;
};

const pb::FieldDescriptor* Field(const pb::Message& message, const char* name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(name);
  RF_CHECK(field != nullptr);
  return field;
}

bool Has(const pb::Message& message, const char* name) {
  return message.GetReflection()->HasField(message, Field(message, name));
}

const pb::Message& Child(const pb::Message& message, const char* name) {
  return message.GetReflection()->GetMessage(message, Field(message, name));
}

}  // namespace

ReflectionProtocol::ReflectionProtocol(std::shared_ptr<grpc::Channel> channel,
                                       std::string address,
                                       cluster::Deadline deadline)
    : channel_(std::move(channel)),
      address_(std::move(address)),
      deadline_(deadline),
      method_(kReflectionV1Alpha) {}

absl::StatusOr<std::unique_ptr<pb::Message>> ReflectionProtocol::Ask(
    const char* field, absl::string_view value) {
  std::unique_ptr<pb::Message> request = ReflectionMessages::New("Request");
  std::unique_ptr<pb::Message> response = ReflectionMessages::New("Response");
  request->GetReflection()->SetString(request.get(), Field(*request, field),
                                      std::string(value));
  bool sent = false;
  bool answered = false;
  const auto ask = [&](const std::string& method) {
    sent = false;
    return CallSerialized(
        channel_, method, deadline_,
        [&](std::string* message) -> absl::StatusOr<Pull> {
          if (std::exchange(sent, true)) return Pull::kEnd;
          *message = request->SerializeAsString();
          return Pull::kMessage;
        },
        [&](const std::string& message) {
          answered = response->ParseFromString(message);
          return answered ? absl::OkStatus()
                          : absl::DataLossError(absl::StrCat(
                                address_, ": malformed reflection reply"));
        });
  };
  absl::Status status = ask(method_);
  if (absl::IsUnimplemented(status) && method_ == kReflectionV1Alpha) {
    method_ = kReflectionV1;
    status = ask(method_);
  }
  if (absl::IsUnimplemented(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat(address_, " does not serve reflection"));
  }
  RF_RETURN_IF_ERROR(status);
  if (!answered) {
    return absl::DataLossError(absl::StrCat(address_, ": no reflection reply"));
  }
  if (Has(*response, "error")) {
    const pb::Message& error = Child(*response, "error");
    const auto code = static_cast<absl::StatusCode>(
        error.GetReflection()->GetInt32(error, Field(error, "code")));
    if (code == absl::StatusCode::kNotFound) {
      return absl::NotFoundError(
          absl::StrCat(address_, " knows no symbol \"", value, "\""));
    }
    return absl::DataLossError(absl::StrCat(
        address_, " cannot describe \"", value, "\": ",
        error.GetReflection()->GetString(error, Field(error, "message"))));
  }
  return response;
}

absl::StatusOr<ReflectionProtocol::Files> ReflectionProtocol::AskFiles(
    const char* field, absl::string_view value) {
  RF_ASSIGN_OR_RETURN(const auto response, Ask(field, value));
  const pb::Message& reply = Child(*response, "files");
  const auto* bytes = Field(reply, "file_descriptor_proto");
  Files files;
  for (int i = 0; i < reply.GetReflection()->FieldSize(reply, bytes); ++i) {
    pb::FileDescriptorProto file;
    if (!file.ParseFromString(
            reply.GetReflection()->GetRepeatedString(reply, bytes, i))) {
      return absl::DataLossError(absl::StrCat(
          address_, ": malformed file descriptor for \"", value, "\""));
    }
    const std::string name = file.name();
    files.emplace(name, std::move(file));
  }
  return files;
}

absl::StatusOr<std::vector<std::string>> ReflectionProtocol::Services() {
  RF_ASSIGN_OR_RETURN(const auto response, Ask("list_services", "*"));
  const pb::Message& reply = Child(*response, "services");
  const auto* service = Field(reply, "service");
  std::vector<std::string> names;
  for (int i = 0; i < reply.GetReflection()->FieldSize(reply, service); ++i) {
    const pb::Message& one =
        reply.GetReflection()->GetRepeatedMessage(reply, service, i);
    names.push_back(one.GetReflection()->GetString(one, Field(one, "name")));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<ReflectionProtocol::Files> ReflectionProtocol::FilesWithSymbol(
    absl::string_view symbol) {
  return AskFiles("file_containing_symbol", symbol);
}

absl::StatusOr<ReflectionProtocol::Files> ReflectionProtocol::FileNamed(
    absl::string_view name) {
  return AskFiles("file_by_filename", name);
}

}  // namespace ringfleet::coordinator
