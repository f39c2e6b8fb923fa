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
#include "cluster/model/families.h"
#include "cluster/model/model_spec.h"
#include "cluster/process/status_macros.h"
#include "coordinator/cli/checkpoint/text_findings.h"
#include "coordinator/cli/json_output.h"
#include "coordinator/cli/output.h"
#include "coordinator/cli/progress.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace ringfleet::coordinator::cli {
namespace {

using cluster::ModelInspection;
using cluster::ModelSpec;
using cluster::QuantMethod;
using cluster::TensorTally;

constexpr char kInspectFooter[] = R"(
Reads config.json, generation_config.json, the headers of the safetensors files
and the tokenizer, no weights. Compares the tensors with what the configuration
asks for. Exit 4 when a tensor is missing or wrong: it has another shape, a type
that cannot be loaded, or nothing reads it although its layer is used (a bias, a
static scale). Loading refuses such a checkpoint, too. Tensors of unused layers
and those known to be superfluous are listed as unexpected and do no harm. A
checkpoint without its multi-token prediction layer is complete.

Says the family, how its forward pass differs from DeepSeek-V3's, which tensors are
skipped and why, and what has not been verified with published weights.

Exit 4 also when the tokenizer or generation_config.json cannot be used. Members
of config.json that nothing reads are named: one that changes the mathematics
means that this program computes another model.

The tokenizer and generation_config.json contradict the model if they name ids that
it does not have: exit 4. Doubts are listed: two files that name different end
tokens, ids without a token, no chat template.

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
  std::vector<std::string> unread_config;
  Json tokenizer;
  Json generation;
  TextFindings text;
  // The first error of a file that is no tensor's.
  absl::Status files;
};

Json ErrorJson(const absl::Status& status) {
  return {{"error", std::string(status.message())}};
}

// Describes the tokenizer. Null: there is none. "error": it cannot be loaded.
Json InspectTokenizer(
    const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer,
    absl::Status* status) {
  if (!tokenizer.ok()) *status = Annotate(tokenizer.status(), "tokenizer");
  if (absl::IsNotFound(tokenizer.status())) return nullptr;
  if (!tokenizer.ok()) return ErrorJson(tokenizer.status());
  return {{"tokens", (*tokenizer)->id_limit()},
          {"bos_token", (*tokenizer)->bos_token()},
          {"eos_token", (*tokenizer)->eos_token()},
          {"add_bos", (*tokenizer)->add_bos()},
          {"chat_template", !(*tokenizer)->chat_template().empty()}};
}

// The sampling defaults, and the settings that are not supported.
Json InspectGeneration(
    const absl::StatusOr<cluster::GenerationDefaults>& defaults,
    absl::Status* status) {
  if (!defaults.ok()) {
    *status = defaults.status();
    return ErrorJson(defaults.status());
  }
  return {{"temperature", defaults->temperature},
          {"top_k", defaults->top_k},
          {"top_p", defaults->top_p},
          {"min_p", defaults->min_p},
          {"repetition_penalty", defaults->repetition_penalty},
          {"min_new_tokens", defaults->min_new_tokens},
          {"ignored", JsonArray(defaults->ignored)}};
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

const TensorTally& MtpTally(const ModelInspection& found) {
  return found.classes[static_cast<size_t>(cluster::WeightClass::kMtp)];
}

// Null: the weights are not quantised.
Json QuantizationJson(const ModelSpec& spec) {
  const QuantMethod method = spec.quantization.method;
  if (method == QuantMethod::kNone) return nullptr;
  Json json = {{"method", std::string(cluster::QuantMethodName(method))}};
  if (method == QuantMethod::kFp8) json["format"] = "e4m3";
  if (method == QuantMethod::kInt4) {
    json["group_size"] = cluster::kInt4GroupSize;
  }
  if (spec.weight_block_rows > 0) {
    json["weight_block_size"] = {spec.weight_block_rows,
                                 spec.weight_block_columns};
  }
  return json;
}

std::string QuantizationText(const ModelSpec& spec) {
  const std::string blocks =
      spec.weight_block_rows > 0
          ? absl::StrCat("blocks of ", spec.weight_block_rows, " x ",
                         spec.weight_block_columns)
          : "with a scale for each tensor";
  switch (spec.quantization.method) {
    case QuantMethod::kNone:
      break;
    case QuantMethod::kFp8:
      return absl::StrCat("fp8 e4m3 ", blocks);
    case QuantMethod::kInt4:
      return absl::StrCat("int4 in groups of ", cluster::kInt4GroupSize);
    case QuantMethod::kInt8Channel:
      return "int8 with a scale for each output";
    case QuantMethod::kInt8Blocks:
      return absl::StrCat("int8 ", blocks);
  }
  return "not quantised";
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
  const cluster::Family& family = cluster::FamilyOf(spec);
  Json skipped = Json::array();
  for (const auto& [reason, tally] : found.skipped) {
    Json entry = TallyJson(tally);
    entry["reason"] = reason;
    skipped.push_back(std::move(entry));
  }
  Json document = {
      {"model", inspected.model},
      {"ok", status.ok()},
      {"architecture", spec.architecture},
      {"model_type", spec.model_type},
      {"family", std::string(family.name)},
      {"differences", JsonArray(family.differences)},
      {"unverified", std::string(family.unverified)},
      {"parameters", sum.parameters},
      {"parameters_with_mtp", sum.parameters + MtpTally(found).parameters},
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
      {"quantization", QuantizationJson(spec)},
      {"classes", classes},
      {"dtypes", dtypes},
      {"shards", files},
      {"skipped", skipped},
      {"missing", JsonArray(found.missing)},
      {"wrong", JsonArray(found.wrong)},
      {"unexpected", JsonArray(found.unexpected)},
      {"unread_config", JsonArray(inspected.unread_config)},
      {"tokenizer", inspected.tokenizer},
      {"generation", inspected.generation},
      {"contradictions", JsonArray(inspected.text.contradictions)},
      {"doubts", JsonArray(inspected.text.doubts)}};
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

std::string GenerationText(const Json& generation) {
  if (generation.contains("error")) {
    return generation["error"].get<std::string>();
  }
  std::string text =
      generation["temperature"] == 0
          ? "greedy"
          : absl::StrCat("temperature ", generation["temperature"].dump(),
                         ", top_k ", generation["top_k"].dump(), ", top_p ",
                         generation["top_p"].dump(), ", min_p ",
                         generation["min_p"].dump());
  if (generation["repetition_penalty"] != 1) {
    absl::StrAppend(&text, ", repetition penalty ",
                    generation["repetition_penalty"].dump());
  }
  if (generation["min_new_tokens"] != 0) {
    absl::StrAppend(&text, ", at least ", generation["min_new_tokens"].dump(),
                    " tokens");
  }
  for (const Json& setting : generation["ignored"]) {
    absl::StrAppend(&text, "; ", setting.get<std::string>(),
                    " is not supported, ignored");
  }
  return text;
}

// Says how the model differs from DeepSeek-V3, what of it is skipped, and what
// nobody has verified.
std::string FamilyText(const Inspected& inspected) {
  const cluster::Family& family = cluster::FamilyOf(inspected.spec);
  std::string out = absl::StrCat("family: ", family.name);
  if (family.model_type != inspected.spec.model_type) {
    absl::StrAppend(&out, " (model_type ", inspected.spec.model_type,
                    " is unknown, absent members are those of ",
                    family.model_type, ")");
  }
  absl::StrAppend(&out, "\n");
  for (const std::string& difference : family.differences) {
    absl::StrAppend(&out, "- differs from DeepSeek-V3: ", difference, "\n");
  }
  for (const auto& [reason, tally] : inspected.found.skipped) {
    absl::StrAppend(&out, "- skipped: ", tally.tensors, " tensors, ",
                    HumanBytes(tally.bytes), ": ", reason, "\n");
  }
  if (!family.unverified.empty()) {
    absl::StrAppend(&out, "- unverified: ", family.unverified, "\n");
  }
  return out;
}

std::string InspectMarkdown(const Inspected& inspected) {
  const ModelSpec& spec = inspected.spec;
  const ModelInspection& found = inspected.found;
  const TensorTally sum = Sum(found);
  std::string out = absl::StrFormat(
      "%s: %s, %d layers of width %d, %d heads, %d experts of which %d, "
      "vocabulary %d, %d positions\n%.3f million parameters%s, %d tensors, %s "
      "in %d files; %s; multi-token prediction layer: %s\ntokenizer: "
      "%s\nsampling: %s\n",
      inspected.model, spec.architecture, spec.num_hidden_layers,
      spec.hidden_size, spec.num_attention_heads, spec.n_routed_experts,
      spec.num_experts_per_tok, spec.vocab_size, spec.max_position_embeddings,
      static_cast<double>(sum.parameters) * 1e-6,
      found.has_mtp
          ? absl::StrFormat(" (%.3f with the prediction layer)",
                            static_cast<double>(sum.parameters +
                                                MtpTally(found).parameters) *
                                1e-6)
          : "",
      sum.tensors, HumanBytes(sum.bytes), found.files.size(),
      QuantizationText(spec),
      found.has_mtp ? "yes" : "no", TokenizerText(inspected.tokenizer),
      GenerationText(inspected.generation));
  absl::StrAppend(&out, FamilyText(inspected));
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
  AppendNames("unread members of config.json", inspected.unread_config, &out);
  AppendNames("contradictions", inspected.text.contradictions, &out);
  AppendNames("doubts", inspected.text.doubts, &out);
  AppendNames("missing", found.missing, &out);
  AppendNames("wrong", found.wrong, &out);
  AppendNames("unexpected", found.unexpected, &out);
  return out;
}

absl::Status Verdict(const Inspected& inspected) {
  const std::string& model = inspected.model;
  const ModelInspection& found = inspected.found;
  if (found.ok()) {
    if (inspected.files.ok()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("inspect: ", inspected.files.message()));
  }
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
  RF_ASSIGN_OR_RETURN(const std::string config,
                      cluster::ReadModelFile(options.model, "config.json",
                                             cluster::kMaxConfigBytes));
  RF_ASSIGN_OR_RETURN(inspected.unread_config,
                      cluster::FindUnreadConfigMembers(config));
  const auto generation = cluster::LoadGenerationDefaults(options.model);
  const auto tokenizer = Tokenizer::Load(options.model);
  inspected.generation = InspectGeneration(generation, &inspected.files);
  inspected.tokenizer = InspectTokenizer(tokenizer, &inspected.files);
  if (generation.ok() && tokenizer.ok()) {
    inspected.text = JudgeTextFiles(inspected.spec, *generation, **tokenizer);
    if (absl::IsNotFound(cluster::ReadModelFile(options.model,
                                                "generation_config.json",
                                                cluster::kMaxConfigBytes)
                             .status())) {
      inspected.text.doubts.push_back(
          "generation_config.json: absent, so answers are greedy");
    }
  }
  if (!inspected.text.contradictions.empty()) {
    inspected.files =
        absl::DataLossError(inspected.text.contradictions.front());
  }
  const absl::Status verdict = Verdict(inspected);
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
