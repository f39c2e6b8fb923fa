// SPDX-License-Identifier: Apache-2.0
#include "coordinator/reflection/reflection_client.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cluster/process/status_macros.h"
#include "cluster/rpc/channel.h"

namespace ringfleet::coordinator {
namespace {

namespace pb = google::protobuf;

constexpr char kTypePrefix[] = "type.googleapis.com";
// A server that keeps naming further imports must end somewhere.
constexpr size_t kMaxFiles = 4096;
constexpr int kMaxReplyBytes = 64 << 20;

class FirstError : public pb::DescriptorPool::ErrorCollector {
 public:
  void AddError(const std::string& file, const std::string& element,
                const pb::Message* descriptor, ErrorLocation location,
                const std::string& message) override {
    if (text.empty()) text = absl::StrCat(file, ": ", element, ": ", message);
  }
  std::string text;
};

bool IsSymbol(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.';
  });
}

std::string Trimmed(const std::string& text) {
  return std::string(absl::StripAsciiWhitespace(text));
}

// Checks the syntax first: this parser knows line and column.
absl::Status CheckJson(const std::string& document) {
  try {
    [[maybe_unused]] const auto json = nlohmann::json::parse(document);
  } catch (const nlohmann::json::exception& e) {
    absl::string_view what = e.what();  // "[json.exception...] parse error..."
    const size_t bracket = what.find("] ");
    if (bracket != absl::string_view::npos) what.remove_prefix(bracket + 2);
    return absl::InvalidArgumentError(what);
  }
  return absl::OkStatus();
}

}  // namespace

ReflectionClient::ReflectionClient(const cluster::ServerAddress& address,
                                   cluster::Deadline deadline)
    : address_(cluster::FormatAddress(address)),
      deadline_(deadline),
      channel_([&] {
        grpc::ChannelArguments arguments = cluster::DirectArguments();
        arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
        return cluster::OpenChannel(absl::StrCat("dns:///", address_),
                                    arguments);
      }()),
      reflection_(channel_, address_, deadline_),
      resolver_(
          pb::util::NewTypeResolverForDescriptorPool(kTypePrefix, &pool_)) {}

absl::Status ReflectionClient::Connect() {
  if (cluster::AwaitConnection(*channel_)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("no connection with ", address_, "; does it run?"));
}

absl::Status ReflectionClient::AddFile(const std::string& name,
                                       ReflectionProtocol::Files& fetched,
                                       std::set<std::string>& importing) {
  if (pool_.FindFileByName(name) != nullptr) return absl::OkStatus();
  if (importing.size() >= kMaxFiles || !importing.insert(name).second) {
    return absl::DataLossError(absl::StrCat(address_, ": the imports of ", name,
                                            " form a cycle or never end"));
  }
  if (!fetched.contains(name)) {
    RF_ASSIGN_OR_RETURN(auto more, reflection_.FileNamed(name));
    fetched.merge(more);
    if (!fetched.contains(name)) {
      return absl::DataLossError(
          absl::StrCat(address_, " did not send ", name));
    }
  }
  const pb::FileDescriptorProto& file = fetched.at(name);
  for (const std::string& import : file.dependency()) {
    RF_RETURN_IF_ERROR(AddFile(import, fetched, importing));
  }
  FirstError error;
  if (pool_.BuildFileCollectingErrors(file, &error) == nullptr) {
    return absl::DataLossError(
        absl::StrCat(address_, ": bad descriptors: ", error.text));
  }
  return absl::OkStatus();
}

absl::Status ReflectionClient::LoadSymbol(absl::string_view symbol) {
  if (!IsSymbol(symbol)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", symbol, "\" is not a symbol; want a name like package.Service"));
  }
  RF_ASSIGN_OR_RETURN(auto files, reflection_.FilesWithSymbol(symbol));
  std::vector<std::string> names;
  for (const auto& [name, file] : files) names.push_back(name);
  std::set<std::string> importing;
  for (const std::string& name : names) {
    RF_RETURN_IF_ERROR(AddFile(name, files, importing));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReflectionClient::ListServices() {
  return reflection_.Services();
}

absl::StatusOr<const pb::ServiceDescriptor*> ReflectionClient::FindService(
    absl::string_view name) {
  absl::Status status = LoadSymbol(name);
  const pb::ServiceDescriptor* service =
      status.ok() ? pool_.FindServiceByName(std::string(name)) : nullptr;
  if (service != nullptr) return service;
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  RF_ASSIGN_OR_RETURN(const auto services, reflection_.Services());
  if (std::find(services.begin(), services.end(), name) != services.end()) {
    return absl::NotFoundError(absl::StrCat(address_, " serves ", name,
                                            " but has no description of it"));
  }
  return absl::NotFoundError(
      absl::StrCat(address_, " has no service \"", name,
                   "\"; it has: ", absl::StrJoin(services, ", ")));
}

absl::StatusOr<std::vector<std::string>> ReflectionClient::ListMethods(
    absl::string_view service) {
  RF_ASSIGN_OR_RETURN(const auto* descriptor, FindService(service));
  std::vector<std::string> names;
  for (int i = 0; i < descriptor->method_count(); ++i) {
    names.push_back(descriptor->method(i)->full_name());
  }
  return names;
}

absl::StatusOr<std::string> ReflectionClient::Describe(
    absl::string_view symbol) {
  std::string name(absl::StripPrefix(symbol, "."));
  std::replace(name.begin(), name.end(), '/', '.');
  RF_RETURN_IF_ERROR(LoadSymbol(name));
  const auto text = [&](const char* kind, const auto* descriptor) {
    return absl::StrCat(name, " is ", kind, ":\n",
                        Trimmed(descriptor->DebugString()), "\n");
  };
  if (const auto* d = pool_.FindServiceByName(name)) {
    return text("a service", d);
  }
  if (const auto* d = pool_.FindMethodByName(name)) return text("a method", d);
  if (const auto* d = pool_.FindMessageTypeByName(name)) {
    return text("a message", d);
  }
  if (const auto* d = pool_.FindFieldByName(name)) return text("a field", d);
  if (const auto* d = pool_.FindOneofByName(name)) return text("a oneof", d);
  if (const auto* d = pool_.FindEnumTypeByName(name)) return text("an enum", d);
  if (const auto* d = pool_.FindEnumValueByName(name)) {
    return text("an enum value", d);
  }
  if (const auto* d = pool_.FindExtensionByName(name)) {
    return text("an extension", d);
  }
  return absl::NotFoundError(
      absl::StrCat(address_, " knows no symbol \"", name, "\""));
}

absl::Status ReflectionClient::Call(absl::string_view method,
                                    MessageSource documents,
                                    MessageSink replies, bool all_fields) {
  const absl::string_view name = absl::StripPrefix(method, "/");
  const size_t split = name.find_last_of("/.");
  if (split == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("method \"", method, "\": want package.Service/Method"));
  }
  RF_ASSIGN_OR_RETURN(const auto* service, FindService(name.substr(0, split)));
  const auto* descriptor =
      service->FindMethodByName(std::string(name.substr(split + 1)));
  if (descriptor == nullptr) {
    RF_ASSIGN_OR_RETURN(const auto methods, ListMethods(service->full_name()));
    return absl::NotFoundError(
        absl::StrCat("no method \"", name,
                     "\"; the service has: ", absl::StrJoin(methods, ", ")));
  }
  const auto type_url = [](const pb::Descriptor* type) {
    return absl::StrCat(kTypePrefix, "/", type->full_name());
  };
  const std::string request_type = descriptor->input_type()->full_name();

  int num_documents = 0;
  const auto to_binary = [&](const std::string& document,
                             std::string* message) -> absl::Status {
    const std::string place =
        absl::StrCat("request ", ++num_documents, ", a ", request_type);
    RF_RETURN_IF_ERROR(Annotate(CheckJson(document), place));
    const auto status = pb::util::JsonToBinaryString(
        resolver_.get(), type_url(descriptor->input_type()), document, message);
    if (status.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": ", std::string(status.message())));
  };

  std::string only_request;
  bool ended = false;
  const auto pull = [&](std::string* message) -> absl::StatusOr<Pull> {
    if (ended) return Pull::kEnd;
    std::string document;
    while (true) {
      RF_ASSIGN_OR_RETURN(const Pull pulled, documents(&document));
      if (pulled == Pull::kNotYet) return pulled;
      if (descriptor->client_streaming()) {
        if (pulled == Pull::kMessage) {
          RF_RETURN_IF_ERROR(to_binary(document, message));
        }
        return pulled;
      }
      if (pulled == Pull::kEnd) {  // Nothing is sent before it is all there is.
        ended = true;
        *message = only_request;
        return Pull::kMessage;
      }
      if (num_documents == 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            descriptor->full_name(), " takes one request and got a second"));
      }
      RF_RETURN_IF_ERROR(to_binary(document, &only_request));
    }
  };

  pb::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = all_fields;
  const auto print = [&](const std::string& message) -> absl::Status {
    std::string json;
    const auto status = pb::util::BinaryToJsonString(
        resolver_.get(), type_url(descriptor->output_type()), message, &json,
        options);
    if (!status.ok()) {
      return absl::DataLossError(absl::StrCat(
          "reply is not a ", descriptor->output_type()->full_name(), ": ",
          std::string(status.message())));
    }
    return replies(json);
  };
  return CallSerialized(
      channel_,
      absl::StrCat("/", service->full_name(), "/", descriptor->name()),
      deadline_, pull, print);
}

}  // namespace ringfleet::coordinator
