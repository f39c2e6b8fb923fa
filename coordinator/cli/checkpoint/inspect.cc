// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/checkpoint/inspect.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cluster/checkpoint/model_inspection.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/checkpoint/safetensors.h"
#include "cluster/model/model_spec.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::ModelInspection;
using cluster::ModelSpec;
using cluster::TensorTally;

constexpr char kInspectFooter[] = R"(
Reads config.json, the headers of the safetensors files and the tokenizer, no
weights. Compares the tensors with what the configuration asks for. Exit 4 when a
tensor is missing or wrong: it has another shape, a type that cannot be loaded,
or nothing reads it although its layer is used (a bias, a static scale). Loading
refuses such a checkpoint, too. Tensors of unused layers and those known to be
superfluous are listed as unexpected and do no harm. A checkpoint without its
multi-token prediction layer is complete.

Examples:
  ringfleet inspect tests/models/tiny-v3
  ringfleet inspect DIR -o json
  ringfleet inspect synth:r1-slice
)";

// Names of a list that a table shows; JSON has all.
constexpr size_t kShownNames = 20;

struct InspectOptions {
  std::string model;
  std::string format = "md";
};

struct Inspected {
  std::string model;
  ModelSpec spec;
  ModelInspection found;
  Json tokenizer;
};

// Describes the tokenizer; "error" if it cannot be loaded.
Json InspectTokenizer(const std::string& model) {
  const auto tokenizer = Tokenizer::Load(model);
  if (absl::IsNotFound(tokenizer.status())) return nullptr;
  if (!tokenizer.ok()) {
    return {{"error", std::string(tokenizer.status().message())}};
  }
  return {{"tokens", (*tokenizer)->id_limit()},
          {"bos_token", (*tokenizer)->bos_token()},
          {"eos_token", (*tokenizer)->eos_token()},
          {"add_bos", (*tokenizer)->add_bos()},
          {"chat_template", !(*tokenizer)->chat_template().empty()}};
}

Json TallyJson(const TensorTally& tally) {
  return {{"tensors", tally.tensors},
          {"parameters", tally.parameters},
          {"bytes", tally.bytes}};
}

TensorTally Sum(const ModelInspection& found) {
  TensorTally sum;
  for (const auto& [name, tally] : found.files) {
    sum.tensors += tally.tensors;
    sum.bytes += tally.bytes;
  }
  // As models are counted: neither scales nor the prediction layers.
  for (int i = 0; i < cluster::kNumWeightClasses; ++i) {
    if (i == static_cast<int>(cluster::WeightClass::kMtp)) continue;
    sum.parameters += found.classes[i].parameters;
  }
  return sum;
}

Json InspectJson(const Inspected& inspected, const absl::Status& status) {
  const ModelSpec& spec = inspected.spec;
  const ModelInspection& found = inspected.found;
  const TensorTally sum = Sum(found);
  Json classes;
  for (int i = 0; i < cluster::kNumWeightClasses; ++i) {
    classes[std::string(cluster::WeightClassName(
        static_cast<cluster::WeightClass>(i)))] = TallyJson(found.classes[i]);
  }
  Json dtypes = Json::object();
  for (const auto& [name, tally] : found.dtypes) {
    dtypes[name] = {{"tensors", tally.tensors}, {"bytes", tally.bytes}};
  }
  Json files = Json::array();
  for (const auto& [name, tally] : found.files) {
    files.push_back(
        {{"name", name}, {"tensors", tally.tensors}, {"bytes", tally.bytes}});
  }
  Json quantization;
  if (spec.weight_block_rows > 0) {
    quantization = {{"method", "fp8"},
                    {"format", "e4m3"},
                    {"weight_block_size",
                     {spec.weight_block_rows, spec.weight_block_columns}}};
  }
  Json document = {{"model", inspected.model},
                   {"ok", status.ok()},
                   {"architecture", spec.architecture},
                   {"model_type", spec.model_type},
                   {"parameters", sum.parameters},
                   {"tensors", sum.tensors},
                   {"bytes", sum.bytes},
                   {"layers", spec.num_hidden_layers},
                   {"hidden_size", spec.hidden_size},
                   {"heads", spec.num_attention_heads},
                   {"experts", spec.n_routed_experts},
                   {"experts_per_token", spec.num_experts_per_tok},
                   {"vocab_size", spec.vocab_size},
                   {"max_position_embeddings", spec.max_position_embeddings},
                   {"mtp", found.has_mtp},
                   {"quantization", quantization},
                   {"classes", classes},
                   {"dtypes", dtypes},
                   {"shards", files},
                   {"missing", JsonArray(found.missing)},
                   {"wrong", JsonArray(found.wrong)},
                   {"unexpected", JsonArray(found.unexpected)},
                   {"tokenizer", inspected.tokenizer}};
  if (!status.ok()) {
    document["error"] = {{"code", absl::StatusCodeToString(status.code())},
                         {"message", std::string(status.message())}};
  }
  return document;
}

void AppendNames(absl::string_view title, const std::vector<std::string>& names,
                 std::string* out) {
  if (names.empty()) return;
  absl::StrAppend(out, "\n", title, ": ", names.size(), "\n");
  for (size_t i = 0; i < std::min(names.size(), kShownNames); ++i) {
    absl::StrAppend(out, "- ", names[i], "\n");
  }
  if (names.size() > kShownNames) {
    absl::StrAppend(out, "- and ", names.size() - kShownNames,
                    " more (-o json has all)\n");
  }
}

void AppendTally(absl::string_view name, const TensorTally& tally,
                 std::string* out) {
  absl::StrAppendFormat(out, "| %s | %d | %.3f | %.3f |\n", name, tally.tensors,
                        static_cast<double>(tally.parameters) * 1e-6,
                        static_cast<double>(tally.bytes) * 1e-9);
}

std::string TokenizerText(const Json& tokenizer) {
  if (tokenizer.is_null()) return "none";
  if (tokenizer.contains("error")) {
    return tokenizer["error"].get<std::string>();
  }
  return absl::StrCat(
      tokenizer["tokens"].get<uint32_t>(), " tokens, ",
      tokenizer["add_bos"].get<bool>() ? "BOS before prompts" : "no BOS",
      tokenizer["chat_template"].get<bool>() ? ", a chat template" : "");
}

std::string InspectMarkdown(const Inspected& inspected) {
  const ModelSpec& spec = inspected.spec;
  const ModelInspection& found = inspected.found;
  const TensorTally sum = Sum(found);
  std::string out = absl::StrFormat(
      "%s: %s, %d layers of width %d, %d heads, %d experts of which %d, "
      "vocabulary %d, %d positions\n%.3f million parameters, %d tensors, %.3f "
      "GB in %d files; %s; multi-token prediction layer: %s\ntokenizer: %s\n",
      inspected.model, spec.architecture, spec.num_hidden_layers,
      spec.hidden_size, spec.num_attention_heads, spec.n_routed_experts,
      spec.num_experts_per_tok, spec.vocab_size, spec.max_position_embeddings,
      static_cast<double>(sum.parameters) * 1e-6, sum.tensors,
      static_cast<double>(sum.bytes) * 1e-9, found.files.size(),
      spec.weight_block_rows > 0
          ? absl::StrCat("fp8 e4m3 blocks of ", spec.weight_block_rows, " x ",
                         spec.weight_block_columns)
          : "not quantised",
      found.has_mtp ? "yes" : "no", TokenizerText(inspected.tokenizer));
  absl::StrAppend(&out,
                  "\n| class | tensors | million parameters | GB "
                  "|\n|---|---|---|---|\n");
  for (int i = 0; i < cluster::kNumWeightClasses; ++i) {
    AppendTally(cluster::WeightClassName(static_cast<cluster::WeightClass>(i)),
                found.classes[i], &out);
  }
  AppendTally("unexpected", found.unexpected_tally, &out);
  absl::StrAppend(&out,
                  "\n| type | tensors | million numbers | GB "
                  "|\n|---|---|---|---|\n");
  for (const auto& [name, tally] : found.dtypes) AppendTally(name, tally, &out);
  AppendNames("missing", found.missing, &out);
  AppendNames("wrong", found.wrong, &out);
  AppendNames("unexpected", found.unexpected, &out);
  return out;
}

absl::Status Verdict(const std::string& model, const ModelInspection& found) {
  if (found.ok()) return absl::OkStatus();
  const bool missing = !found.missing.empty();
  return absl::DataLossError(absl::StrCat(
      "inspect: ", model, ": ", found.missing.size(), " tensors missing, ",
      found.wrong.size(), " wrong; first: ",
      missing ? absl::StrCat("missing tensor ", found.missing.front())
              : found.wrong.front()));
}

absl::Status Run(const InspectOptions& options, Invocation& invocation) {
  Inspected inspected = {.model = options.model};
  RF_ASSIGN_OR_RETURN(inspected.spec, cluster::LoadModelSpec(options.model));
  RF_ASSIGN_OR_RETURN(const std::unique_ptr<cluster::Checkpoint> checkpoint,
                      cluster::OpenCheckpoint(options.model));
  inspected.found = cluster::InspectModel(inspected.spec, *checkpoint);
  inspected.tokenizer = InspectTokenizer(options.model);
  const absl::Status verdict = Verdict(options.model, inspected.found);
  if (options.format == "json") {
    // The one document has the error too.
    RF_RETURN_IF_ERROR(PrintJson(InspectJson(inspected, verdict)));
    invocation.json = false;
  } else {
    RF_RETURN_IF_ERROR(PrintText(InspectMarkdown(inspected)));
  }
  return verdict;
}

}  // namespace

void RegisterInspect(CLI::App& app, Invocation& invocation) {
  CLI::App* verb = app.add_subcommand(
      "inspect", "Say what is in a checkpoint, and what it lacks");
  verb->group("Tools");
  verb->footer(kInspectFooter);
  auto options = std::make_shared<InspectOptions>();
  verb->add_option("model,-m,--model", options->model,
                   "Folder of a checkpoint in the hub's format, or synth:NAME")
      ->required();
  AddFormatOptions(*verb, {"md", "json"}, &options->format);
  verb->callback([options, &invocation] {
    invocation.json = options->format == "json";
    invocation.run = [options, &invocation] {
      return Run(*options, invocation);
    };
  });
}

}  // namespace ringfleet::coordinator::cli
