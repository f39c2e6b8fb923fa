// SPDX-License-Identifier: Apache-2.0
// What a user or a disk can get wrong: each is one line on stderr that names
// value, expectation and place, the right exit code, in bounded time, and the
// fixture sees that no process and no temporary folder is left.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <ostream>
#include <sstream>

#include "tests/integration/fleet_fixture.h"
#include "tests/testing/restrictions.h"

namespace ringfleet::integration {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::ReadFile;
using testing::WriteFile;

constexpr char kFirstFile[] = "/model-00001-of-00002.safetensors";

// A safetensors file taken apart.
struct TensorFile {
  explicit TensorFile(const std::string& file_path)
      : path(file_path), data(ReadFile(file_path)) {
    uint64_t length;
    std::memcpy(&length, data.data(), sizeof(length));
    header = json::parse(data.substr(8, length));
    data.erase(0, 8 + length);
  }
  void Write() const {
    WriteFile(path, testing::RawSafetensors(header.dump(), data));
  }
  // The first tensor whose name ends like this.
  std::string Find(const std::string& suffix) const {
    for (const auto& [name, entry] : header.items()) {
      if (name.size() >= suffix.size() &&
          name.compare(name.size() - suffix.size(), suffix.size(), suffix) ==
              0) {
        return name;
      }
    }
    ADD_FAILURE() << "no tensor " << suffix << " in " << path;
    return "";
  }

  std::string path;
  json header;
  std::string data;
};

void EditConfig(const std::string& model,
                const std::function<void(json&)>& edit) {
  json config = json::parse(ReadFile(model + "/config.json"));
  edit(config);
  WriteFile(model + "/config.json", config.dump());
}

struct Damage {
  const char* name;
  void (*damage)(const std::string& model);
  int code;
  std::vector<std::string> mentions;
};

const Damage kDamages[] = {
    {"MissingShard",
     [](const std::string& model) {
       std::filesystem::remove(model + kFirstFile);
     },
     4,
     {"model-00001-of-00002.safetensors", "missing"}},
    {"TruncatedFile",
     [](const std::string& model) {
       std::filesystem::resize_file(model + kFirstFile, 4'000'000);
     },
     4,
     {"model-00001-of-00002.safetensors", "data_offsets", "bytes of data"}},
    {"TruncatedHeader",
     [](const std::string& model) {
       std::filesystem::resize_file(model + kFirstFile, 100);
     },
     4,
     {"model-00001-of-00002.safetensors", "header"}},
    {"EmptyFile",
     [](const std::string& model) { WriteFile(model + kFirstFile, ""); },
     4,
     {"model-00001-of-00002.safetensors"}},
    {"FolderForAFile",
     [](const std::string& model) {
       std::filesystem::remove(model + kFirstFile);
       std::filesystem::create_directory(model + kFirstFile);
     },
     2,
     {"model-00001-of-00002.safetensors", "not a regular file"}},
    {"FifoForAFile",
     [](const std::string& model) {
       std::filesystem::remove(model + kFirstFile);
       mkfifo((model + kFirstFile).c_str(), 0600);
     },
     2,
     {"model-00001-of-00002.safetensors", "not a regular file"}},
    {"AbsurdHeaderLength",
     [](const std::string& model) {
       std::string bytes = ReadFile(model + kFirstFile);
       std::fill_n(bytes.begin(), 8, '\x7f');
       WriteFile(model + kFirstFile, bytes);
     },
     4,
     {"model-00001-of-00002.safetensors", "9187201950435737471"}},
    {"OverlappingOffsets",
     [](const std::string& model) {
       TensorFile file(model + kFirstFile);
       json& offsets = file.header[file.Find("up_proj.weight")]["data_offsets"];
       for (json& offset : offsets) offset = offset.get<int64_t>() - 1;
       file.Write();
     },
     4,
     {"up_proj.weight", "overlap"}},
    {"WrongShape",
     [](const std::string& model) {
       TensorFile file(model + kFirstFile);
       json& shape = file.header[file.Find("down_proj.weight")]["shape"];
       std::swap(shape[0], shape[1]);
       file.Write();
     },
     4,
     {"down_proj.weight", "shape [", "want [256, "}},
    {"WrongDtype",
     [](const std::string& model) {
       TensorFile file(model + kFirstFile);
       file.header[file.Find("down_proj.weight")]["dtype"] = "I8";
       file.Write();
     },
     4,
     {"down_proj.weight", "int8"}},
    {"NanScale",
     [](const std::string& model) {
       TensorFile file(model + kFirstFile);
       const float nan = std::numeric_limits<float>::quiet_NaN();
       const json& entry = file.header[file.Find("o_proj.weight_scale_inv")];
       std::memcpy(&file.data[entry["data_offsets"][0].get<size_t>()], &nan,
                   sizeof(nan));
       file.Write();
     },
     4,
     {"o_proj.weight_scale_inv", "nan"}},
    {"NanLogits",  // Every weight is finite, what is computed is not.
     [](const std::string& model) {
       TensorFile file(model + "/model-00002-of-00002.safetensors");
       const json& entry = file.header[file.Find("model.norm.weight")];
       const size_t begin = entry["data_offsets"][0];
       const size_t end = entry["data_offsets"][1];
       std::fill(file.data.begin() + begin, file.data.begin() + end, '\x7f');
       file.Write();
     },
     4,
     {"model: logits", "position", "NaN"}},
    {"LlamaDistillate",
     [](const std::string& model) {
       EditConfig(model, [](json& config) {
         config["architectures"] = {"LlamaForCausalLM"};
         config["model_type"] = "llama";
       });
     },
     2,
     {"LlamaForCausalLM", "DeepseekV3ForCausalLM"}},
    {"QwenDistillate",
     [](const std::string& model) {
       EditConfig(model, [](json& config) {
         config["architectures"] = {"Qwen2ForCausalLM"};
         config["model_type"] = "qwen2";
       });
     },
     2,
     {"Qwen2ForCausalLM", "DeepseekV3ForCausalLM"}},
    {"NegativeDimension",
     [](const std::string& model) {
       EditConfig(model, [](json& config) { config["kv_lora_rank"] = -3; });
     },
     2,
     {"config.json", "kv_lora_rank", "-3"}},
    {"AbsurdDimension",
     [](const std::string& model) {
       EditConfig(model,
                  [](json& config) { config["hidden_size"] = 1'000'000'000; });
     },
     2,
     {"config.json", "hidden_size", "1000000000"}},
    {"MalformedConfig",
     [](const std::string& model) {
       WriteFile(model + "/config.json", "{\"architectures\": [");
     },
     2,
     {"config.json"}},
    {"MalformedIndex",
     [](const std::string& model) {
       WriteFile(model + "/model.safetensors.index.json", "[]");
     },
     4,
     {"model.safetensors.index.json"}},
};

// Not the bytes of the function pointer.
void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class DamagedModelTest : public FleetTest,
                         public ::testing::WithParamInterface<Damage> {};

TEST_P(DamagedModelTest, IsOneLineThatNamesThePlace) {
  const std::string model = CopyModel();
  GetParam().damage(model);
  const Finished finished =
      Cli({"generate", "--model", model, "--local", "2", "--prompt-ids",
           "0,318,287", "-n", "2", "--json"});
  EXPECT_EQ(finished.code, GetParam().code);
  const std::string line = finished.error_line();
  for (const std::string& part : GetParam().mentions) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  EXPECT_EQ(finished.document()["error"]["message"], line);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, DamagedModelTest,
                         ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return info.param.name; });

class BadInputTest : public HandFleet {
 protected:
  // Runs it twice: with --json the same line comes as a document, too.
  void ExpectError(const Arguments& arguments, int code,
                   const std::vector<std::string>& mentions,
                   const RunOptions& options = {}) {
    const Finished plain = Cli(arguments, options);
    EXPECT_EQ(plain.code, code) << plain.errors;
    EXPECT_EQ(plain.output, "");
    const std::string line = plain.error_line();
    for (const std::string& part : mentions) {
      EXPECT_THAT(line, HasSubstr(part));
    }
    Arguments as_json = arguments;
    as_json.push_back("--json");
    const Finished finished = Cli(as_json, options);
    EXPECT_EQ(finished.code, code);
    const json document = finished.document();
    ASSERT_TRUE(document.contains("error")) << document;
    EXPECT_EQ(document["error"]["message"], finished.error_line());
    EXPECT_TRUE(document["error"]["code"].is_string());
  }
};

// What a shell does with "$@", the command.
Arguments Script(const std::string& script, Arguments command) {
  command.insert(command.begin(), {"-c", script, "sh", RINGFLEET_BINARY});
  return command;
}

TEST_F(BadInputTest, MalformedTokenizer) {
  const std::string model = CopyModel();
  for (const char* content : {"{\"model\": [", "{}", "[1, 2]", ""}) {
    SCOPED_TRACE(content);
    WriteFile(model + "/tokenizer.json", content);
    ExpectError({"tokenize", "--model", model, "-p", "x"}, 2,
                {"tokenizer.json"});
    ExpectError({"generate", "--model", model, "-p", "x", "-n", "1"}, 2,
                {"tokenizer.json"});
  }
  EXPECT_EQ(
      Cli({"generate", "--model", model, "--prompt-ids", "0,1", "-n", "1"})
          .code,
      0)
      << "ids need no tokenizer";
}

// Parsing takes any depth; what copies or prints a value recurses.
TEST_F(BadInputTest, DeeplyNestedJson) {
  const std::string deep(100'000, '[');
  const std::string limit = "64 levels";
  const std::string model = CopyModel();
  WriteFile(model + "/config.json", deep);
  ExpectError({"plan", "--model", model, "--hosts", "1", "--memory", "1",
               "--bandwidth", "1"},
              2, {"config.json", limit});
  ExpectError({"inspect", model}, 2, {"config.json", limit});
  ExpectError({"generate", "--model", model, "-p", "x"}, 2,
              {"config.json", limit});
  const Finished coordinator =
      Run(RINGFLEET_COORDINATOR_BINARY,
          {"--model", model, "--listen", "127.0.0.1:0"});
  EXPECT_EQ(coordinator.code, 2);
  EXPECT_THAT(coordinator.errors,
              AllOf(HasSubstr("config.json"), HasSubstr(limit)));
  for (const char* file : {"/tokenizer.json", "/tokenizer_config.json"}) {
    const std::string other = CopyModel();
    WriteFile(other + file, "{\"pre_tokenizer\": " + deep);
    ExpectError({"tokenize", "--model", other, "-p", "x"}, 2, {file, limit});
  }
  WriteFile(File("deep.json"), "{\"workers\": [" + deep);
  ExpectError({"eplb", "--weights", File("deep.json"), "--replicas", "8",
               "--groups", "1", "--nodes", "1", "--gpus", "1"},
              2, {"deep.json", limit});
  ExpectError({"plan", "--model", Model(), "--fleet", File("deep.json")}, 2,
              {"deep.json", limit});
}

TEST_F(BadInputTest, Prompts) {
  const Arguments generate = {"generate", "--model", Model(), "-n", "1"};
  const auto with = [&](Arguments more) {
    Arguments all = generate;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  WriteFile(File("empty.txt"), "");
  ExpectError(with({"-f", File("empty.txt")}), 2,
              {"empty.txt", "prompt is empty", "want"});
  ExpectError(with({"--prompt-ids", ""}), 2, {"--prompt-ids", "empty"});
  ExpectError(with({"--prompt-ids", "1,x,3"}), 2, {"'x'", "place 2", "want"});
  ExpectError(with({"--prompt-ids", "1,-1"}), 2, {"'-1'", "want"});
  ExpectError(with({"--prompt-ids", "0,2048"}), 2,
              {"2048", "index 1", "vocab_size"});
  ExpectError(with({}), 2, {"give a prompt: -p, -f or --prompt-ids"});
  ExpectError(with({"-p", "x", "-f", "y"}), 2, {"give only one prompt"});
  ExpectError(with({"-f", File("absent.txt")}), 2, {"absent.txt"});
  ExpectError(with({"-c", "8", "--prompt-ids", "1,2,3,4,5,6,7,8,9"}), 2,
              {"9 tokens", "at most 8"});
  ExpectError({"score", "--model", Model(), "--ids", "5000"}, 2,
              {"5000", "vocab_size"});
}

TEST_F(BadInputTest, TextThatIsNotUtf8) {
  const std::string text = "\xff\xfe";
  WriteFile(File("prompt.txt"), "good, then " + text);
  for (const char* verb : {"tokenize", "generate", "score"}) {
    SCOPED_TRACE(verb);
    ExpectError({verb, "--model", Model(), "-p", text}, 2,
                {"text is not UTF-8", "byte 0xff at offset 0"});
    ExpectError({verb, "--model", Model(), "-f", File("prompt.txt")}, 2,
                {"prompt.txt", "text is not UTF-8", "byte 0xff at offset 11"});
  }
  // Before a fleet is asked for.
  WriteFile(cluster(), "name: x\nmodel: m\nworkers:\n  - {port: 0}\n");
  for (const char* verb : {"tokenize", "submit"}) {
    ExpectError({verb, "--cluster", cluster(), "-p", text}, 2,
                {"text is not UTF-8", "byte 0xff at offset 0"});
  }
  const std::string path = File("model") + text;
  std::filesystem::rename(CopyModel(), path);
  ExpectError({"generate", "--model", path, "-p", "x"}, 2,
              {"--model", "model\\xff\\xfe", "not UTF-8"});
  ExpectError({"synth", "--preset", "tiny", "--out", path}, 2,
              {"--out", "not UTF-8"});
}

TEST_F(BadInputTest, FoldersInPlaceOfFiles) {
  for (const Arguments& verb :
       {Arguments{"tokenize"}, Arguments{"generate"}, Arguments{"score"}}) {
    Arguments arguments = verb;
    arguments.insert(arguments.end(), {"--model", Model(), "-f", File("tmp")});
    ExpectError(arguments, 2, {File("tmp"), "Is a directory"});
  }
  ExpectError({"synth", "--preset", "tiny", "--out", ""}, 2,
              {"--out ''", "want a folder"});
}

// A relative path cannot be completed there.
TEST_F(BadInputTest, AWorkingDirectoryThatHasGone) {
  constexpr char kScript[] = "mkdir gone && cd gone && rmdir ../gone && \"$@\"";
  const RunOptions here = {.folder = File("tmp")};
  for (const Arguments& command :
       {Arguments{"generate", "--model", "model", "-p", "x"},
        Arguments{"synth", "--preset", "tiny", "--out", "out"},
        Arguments{"convert", "--model", "model", "--check", "manifest"},
        Arguments{"inspect", "model"}}) {
    SCOPED_TRACE(command[0]);
    const Finished finished = Run("/bin/sh", Script(kScript, command), here);
    EXPECT_EQ(finished.code, 2) << finished.errors;
    EXPECT_EQ(finished.output, "");
    finished.error_line();
  }
  const Finished finished = Run(
      "/bin/sh",
      Script(kScript, {"generate", "--model", Model(), "-p", "x", "-n", "1"}),
      here);
  EXPECT_EQ(finished.code, 0) << finished.errors;
}

// A limit on files' sizes ends nothing: the trace is what fails.
TEST_F(BadInputTest, ATraceLargerThanAFileMayBe) {
  const Finished finished =
      Run("/bin/sh",
          Script("ulimit -f 4 && exec \"$@\"",
                 {"generate", "--model", Model(), "-p", "x", "-n", "64",
                  "--ignore-eos", "--trace", File("trace.json")}),
          {.folder = File("tmp")});
  EXPECT_EQ(finished.code, 1) << finished.errors;
  EXPECT_THAT(finished.errors, HasSubstr("File too large"));
  EXPECT_FALSE(std::filesystem::exists(File("trace.json")));
}

TEST_F(BadInputTest, Options) {
  const auto generate = [](Arguments more) {
    Arguments all = {"generate", "--model", Model(), "-p", "x", "-n", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  ExpectError(generate({"-c", "1025"}), 2, {"context: 1025", "1024"});
  ExpectError(generate({"--local", "0"}), 2, {"--local", "0", "1 to 16"});
  ExpectError(generate({"--local", "17"}), 2, {"--local", "17", "1 to 16"});
  ExpectError(generate({"--dtype", "fp8"}), 2, {"fp8", "int4-experts or int4"});
  ExpectError(generate({"--wire", "fp4"}), 2,
              {"--wire 'fp4'", "f32, bf16 or int8"});
  ExpectError(generate({"--bogus"}), 2, {"--bogus"});
  ExpectError(generate({"--temp", "-1"}), 2, {"sampling: temperature -1"});
  ExpectError(generate({"--top-p", "2"}), 2, {"sampling: top_p 2"});
  ExpectError(generate({"-n", "x"}), 2, {"x"});
  ExpectError({"score", "--model", Model(), "-p", "x y", "--top", "4000"}, 2,
              {"4000", "2048"});
  ExpectError({"score", "--model", Model("tiny-v2"), "-p", "x y", "--mtp"}, 2,
              {"mtp", "num_nextn_predict_layers"});
  ExpectError({"frobnicate"}, 2, {"frobnicate"});
  ExpectError({"generate", "-p", "x"}, 2, {"--model", "--cluster"});
  ExpectError({"generate", "--model", File("absent"), "-p", "x"}, 2,
              {"model: ", "absent/config.json"});
}

TEST_F(BadInputTest, VerbsAndModelsThatAreNotThere) {
  ExpectError({"converse", "--help"}, 2,
              {"unknown verb 'converse'", "(see ringfleet --help)"});
  ExpectError({"generate", "--frob"}, 2,
              {"--frob", "(see ringfleet generate --help)"});
  ExpectError({"doctor", "--model", "/nonexistent"}, 2,
              {"doctor: --model /nonexistent: no such file"});
}

TEST_F(BadInputTest, ATokenizerTakesTheOptionsOfOtherVerbs) {
  const Finished alone = Cli({"tokenize", "--model", Model(), "-p", "def"});
  const Finished local =
      Cli({"tokenize", "--model", Model(), "--local", "2", "-p", "def"});
  EXPECT_EQ(local.code, 0) << local.errors;
  EXPECT_EQ(local.output, alone.output);
}

TEST_F(BadInputTest, Numbers) {
  const Arguments generate = {"generate", "--model", Model(), "-p",
                              "x",        "-n",      "1"};
  const auto with = [&](const std::string& option, const std::string& value) {
    Arguments all = generate;
    all.insert(all.end(), {option, value});
    return all;
  };
  // Of any unsigned option; also where it would wrap to a small number.
  ExpectError(with("--seed", "-2"), 2, {"--seed", "-2", "want -1 or 0 to"});
  ExpectError(with("--top-k", "-18446744073709551615"), 2,
              {"--top-k", "not in range -1 to"});
  ExpectError(
      {"synth", "--preset", "tiny", "--out", File("out"), "--seed", "-1"}, 2,
      {"--seed", "want 0 or more"});
  // NaN is in no range, and outside of none.
  for (const char* value : {"nan", "inf"}) {
    SCOPED_TRACE(value);
    ExpectError(with("--temp", value), 2, {"--temp", value, "finite"});
  }
  ExpectError(with("--expert-capacity", "nan"), 2,
              {"--expert-capacity", "finite"});
  for (const char* verb : {"up", "down"}) {
    ExpectError({verb, "--cluster", File("absent.yaml"), "--timeout", "nan"}, 2,
                {"--timeout", "finite"});
  }
  ExpectError({"collectives", "--timeout", "nan"}, 2, {"--timeout", "finite"});
  ExpectError({"plan", "--model", Model(), "--hosts", "1", "--memory", "nan",
               "--bandwidth", "1"},
              2, {"--memory", "finite"});
  EXPECT_EQ(Cli(with("--seed", "18446744073709551615")).code, 0);
  EXPECT_EQ(Cli(with("--seed", "-1")).code, 0);
  EXPECT_EQ(Cli(with("--top-k", "-1")).code, 0);
}

// A negative number that became unsigned is no id, with or without a fleet.
TEST_F(BadInputTest, IdsThatNoVocabularyHas) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1));
  const std::vector<Arguments> sources = {{"--model", Model()},
                                          {"--cluster", cluster()}};
  for (const Arguments& source : sources) {
    SCOPED_TRACE(source[0]);
    ExpectError({"detokenize", source[0], source[1], "--ids", "1,4294967295"},
                2, {"id 4294967295 at index 1", "want less than 2147483648"});
  }
}

// However the format is asked for.
TEST_F(BadInputTest, UsageErrorsAreDocumentsToo) {
  const std::vector<Arguments> formats = {
      {"--json"},        {"-o", "json"},  {"-ojson"},  {"--output", "json"},
      {"--output=json"}, {"-o", "jsonl"}, {"-ojsonl"}, {"--output=jsonl"}};
  for (const Arguments& format : formats) {
    SCOPED_TRACE(format.back());
    Arguments arguments = {"bench", "--bogus"};
    arguments.insert(arguments.end(), format.begin(), format.end());
    const Finished finished = Cli(arguments);
    EXPECT_EQ(finished.code, 2);
    EXPECT_EQ(finished.document()["error"]["message"], finished.error_line());
  }
  EXPECT_EQ(Cli({"plan", "-o", "md", "--bogus"}).output, "");
}

TEST_F(BadInputTest, ClusterFiles) {
  ExpectError({"submit", "--cluster", File("absent.yaml"), "-p", "x"}, 2,
              {"absent.yaml"});
  WriteFile(cluster(), "name: x\nmodel: m\nwrokers: []\n");
  ExpectError({"submit", "--cluster", cluster(), "-p", "x"}, 2,
              {"fleet.yaml", "wrokers", "workers", "3"});
  WriteFile(cluster(), "name: [\n");
  ExpectError({"submit", "--cluster", cluster(), "-p", "x"}, 2, {"fleet.yaml"});
  // How a fleet computes is the fleet's; nobody is asked.
  const std::vector<Arguments> local_options = {{"--dtype", "f32"},
                                                {"--dtype", "nonsense"},
                                                {"--cache-type", "bf16"},
                                                {"--wire", "f32"},
                                                {"-t", "2"},
                                                {"-c", "100"}};
  for (const char* verb : {"generate", "score"}) {
    for (const Arguments& option : local_options) {
      SCOPED_TRACE(option[1]);
      ExpectError(
          {verb, "--cluster", cluster(), "-p", "x", option[0], option[1]}, 2,
          {option[0], "--cluster"});
    }
  }
  // Nobody listens there.
  WriteFile(cluster(), "name: x\nmodel: m\ncoordinator: {port: " +
                           std::to_string(testing::FreePort()) +
                           "}\nworkers:\n  - {port: 0}\n");
  ExpectError({"submit", "--cluster", cluster(), "-p", "x"}, 3,
              {"nothing listens on 127.0.0.1:", "ringfleet up --cluster"});
}

// The shard would fit into the machine, but not into the process (ulimit -v).
TEST_F(BadInputTest, TooLittleAddressSpace) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's shadow is beyond every limit";
  cluster::ModelSpec spec = testing::TinyV2LiteSpec();
  spec.vocab_size = 1 << 18;
  spec.hidden_size = 1 << 13;
  std::filesystem::create_directories(File("model"));
  testing::WriteHollowModel(File("model"), spec);
  std::filesystem::create_directories(File("bin"));
  const std::string worker = File("bin/ringfleet-worker");
  WriteFile(worker, "#!/bin/sh\nulimit -v 4000000\nexec " +
                        std::string(RINGFLEET_WORKER_BINARY) + " \"$@\"\n");
  std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
  ExpectError({"generate", "--model", File("model"), "--prompt-ids", "0", "-n",
               "1", "-t", "1"},
              1, {"worker 0", "memory: weights of 6", "MiB"},
              {.environment = {{"RINGFLEET_BIN_DIR", File("bin")}}});
}

TEST_F(BadInputTest, TooFewFileDescriptors) {
  ExpectError({"generate", "--model", Model(), "-p", "x", "-n", "1"}, 1,
              {"open files", "20", "want at least"}, {.open_files = 20});
  const Finished worker =
      Run(RINGFLEET_WORKER_BINARY, {"--rank", "0"}, {.open_files = 20});
  EXPECT_EQ(worker.code, 1);
  EXPECT_THAT(worker.errors, HasSubstr("open files"));
}

// Every count between "refused" and "enough" must end in an error, not in a
// hang.
TEST_F(BadInputTest, EveryFileDescriptorLimitEnds) {
  for (int limit = 24; limit <= 160; limit += kSanitized ? 68 : 17) {
    SCOPED_TRACE(limit);
    const Finished finished = Cli({"generate", "--model", Model(), "--local",
                                   "2", "-p", "x", "-n", "1", "--json"},
                                  {.open_files = limit});
    if (finished.code != 0) {
      EXPECT_THAT(finished.errors, HasSubstr("open files"));
    }
    RemoveKeptLogs();
  }
}

// As a user of no other process: root is held to no such limit.
TEST_F(BadInputTest, TooFewThreads) {
  const auto limited = [this](const std::string& program, Arguments arguments) {
    arguments.insert(
        arguments.begin(),
        {"--reuid=60123", "--regid=60123", "--clear-groups", "/bin/bash", "-c",
         "ulimit -u 3; exec \"$0\" \"$@\"", program});
    return Run("/usr/bin/setpriv", std::move(arguments));
  };
  const std::map<std::string, Arguments> commands = {
      {RINGFLEET_BINARY, {"tokenize", "--model", "synth:tiny", "-p", "x"}},
      {RINGFLEET_COORDINATOR_BINARY,
       {"--model", "synth:tiny", "--listen", "127.0.0.1:0"}},
      {RINGFLEET_WORKER_BINARY,
       {"--listen", "127.0.0.1:0", "--coordinator", "none"}}};
  for (const auto& [program, arguments] : commands) {
    if (limited(program, {"--version"}).code != 0) {
      GTEST_SKIP() << "no other user can run " << program << " here";
    }
    const Finished finished = limited(program, arguments);
    EXPECT_EQ(finished.code, 1);
    EXPECT_THAT(
        finished.errors,
        ::testing::MatchesRegex("ringfleet[-a-z]*: threads: the limit is 3, "
                                "want [0-9]+ \\(ulimit -u.*\\)\n"));
  }
}

TEST_F(BadInputTest, AFullTemporaryFolderIsNamed) {
  const std::string folder = File("tmp");  // TMPDIR of all commands.
  const std::string why = testing::WithSmallDisk(folder, 64 << 10, [&] {
    WriteFile(folder + "/fill", std::string(56 << 10, 'x'));
    ExpectError({"generate", "--model", Model(), "--local", "2", "-p", "x"}, 1,
                {"local: " + folder, "No space left on device"});
  });
  if (!why.empty()) GTEST_SKIP() << why;
}

TEST_F(BadInputTest, PortInUse) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1));
  const std::string address = "127.0.0.1:" + std::to_string(port());
  const auto in_use =
      HasSubstr("port " + std::to_string(port()) + " on 127.0.0.1 is in use");
  const Finished coordinator = Run(RINGFLEET_COORDINATOR_BINARY,
                                   {"--model", Model(), "--listen", address});
  EXPECT_NE(coordinator.code, 0);
  EXPECT_THAT(coordinator.errors, in_use);
  const Finished worker = Run(RINGFLEET_WORKER_BINARY, {"--listen", address});
  EXPECT_NE(worker.code, 0);
  EXPECT_THAT(worker.errors, in_use);
}

TEST_F(BadInputTest, AnAddressThatIsNotLoopbackNeedsInsecure) {
  const Finished coordinator =
      Run(RINGFLEET_COORDINATOR_BINARY,
          {"--model", Model(), "--listen", "0.0.0.0:0"});
  EXPECT_EQ(coordinator.code, 2);
  EXPECT_THAT(coordinator.errors,
              AllOf(HasSubstr("0.0.0.0"), HasSubstr("--insecure")));
}

TEST_F(BadInputTest, AWorkerIsNotKnownByAnAddressThatNobodyCanDial) {
  const auto refusal = [this](Arguments arguments) {
    const Finished worker =
        Run(RINGFLEET_WORKER_BINARY, std::move(arguments), {.seconds = 60});
    EXPECT_EQ(worker.code, 2);
    return worker.errors;
  };
  for (const char* any : {"0.0.0.0:0", "[::]:0", "0:0"}) {
    EXPECT_THAT(refusal({"--listen", any, "--insecure"}),
                AllOf(HasSubstr("ringfleet-worker: --listen "),
                      HasSubstr("want --advertise HOST:PORT")));
  }
  EXPECT_THAT(refusal({"--listen", "127.0.0.1:0", "--advertise", "0.0.0.0:1"}),
              HasSubstr("--advertise 0.0.0.0:1: no address that others"));
  // A coordinator of TEST-NET-3 (RFC 5737), which is no machine's.
  EXPECT_THAT(refusal({"--listen", "127.0.0.1:0", "--coordinator",
                       "203.0.113.7:50051"}),
              AllOf(HasSubstr("--listen 127.0.0.1:0: an address of this "
                              "machine only"),
                    HasSubstr("203.0.113.7:50051 is on another")));
}

TEST_F(BadInputTest, AWorkerIsNoCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartFleet(1));
  const json status = Status();
  const std::string address = status["workers"][0]["address"];
  const Finished worker = Run(
      RINGFLEET_WORKER_BINARY,
      {"--listen", "127.0.0.1:0", "--coordinator", address}, {.seconds = 60});
  EXPECT_EQ(worker.code, 2);
  EXPECT_THAT(worker.errors,
              HasSubstr("--coordinator " + address +
                        ": a worker listens there, want the address of"));
}

// Copies a program and changes the build id in the copy, which stands behind
// a mark.
void CopyAsOtherBuild(const std::string& program, const std::string& copy) {
  std::stringstream bytes;
  bytes << std::ifstream(program, std::ios::binary).rdbuf();
  std::string text = bytes.str();
  const std::string mark = std::string("ringfleet") + " build ";
  const size_t found = text.find(mark);
  ASSERT_NE(found, std::string::npos);
  text.replace(found + mark.size(), 5, "other");
  std::ofstream(copy, std::ios::binary) << text;
  std::filesystem::permissions(copy, std::filesystem::perms::owner_all);
}

TEST_F(BadInputTest, AWorkerOfAnotherBuildIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(1));
  const std::string other = File("worker");
  ASSERT_NO_FATAL_FAILURE(CopyAsOtherBuild(RINGFLEET_WORKER_BINARY, other));
  workers_[0] =
      Start(other, {"--rank", "0", "--listen", "127.0.0.1:0", "--coordinator",
                    "127.0.0.1:" + std::to_string(port()), "--threads", "1"});
  EXPECT_EQ(workers_[0]->Wait(10), 3) << workers_[0]->errors();
  EXPECT_THAT(workers_[0]->errors(),
              AllOf(HasSubstr("build other"), HasSubstr("want")));
  EXPECT_EQ(Status()["state"], "waiting");
  // The right one still may come.
  StartWorker(0);
  EXPECT_EQ(WaitForState("ready")["state"], "ready");
}

TEST_F(BadInputTest, AWorkerWithAnotherCheckpointFailsTheFleet) {
  // The same relative path, another folder; one dimension of one differs.
  CopyModel("tiny-v3", "a/model");
  CopyModel("tiny-v3", "b/model");
  EditConfig(File("b/model"),
             [](json& config) { config["routed_scaling_factor"] = 2.25; });
  const RunOptions in_a = {.folder = File("a")};
  ASSERT_NO_FATAL_FAILURE(StartCoordinator(2, {}, in_a, 0, "model"));
  StartWorker(0, in_a);
  StartWorker(1, {.folder = File("b")});
  EXPECT_EQ(WaitForState("failed")["state"], "failed");
  const Finished finished =
      Cli({"generate", "--cluster", cluster(), "-p", "x", "-n", "1", "--json"});
  EXPECT_EQ(finished.code, 4);
  EXPECT_THAT(finished.error_line(),
              AllOf(HasSubstr("another checkpoint"), HasSubstr("worker 1"),
                    HasSubstr("fingerprint")));
}

}  // namespace
}  // namespace ringfleet::integration
