// SPDX-License-Identifier: Apache-2.0
// Compares the collectives with Open MPI on the same machine and prints the
// tables of perf/results/collectives.md. Rounds of `ringfleet collectives` and
// Open MPI take turns, so that the machine's changes meet both. Ratios are made
// within a round, then the median is taken. --interference measures the cost of
// the control plane and of other processes instead.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "perf/control_load.h"
#include "perf/program.h"

namespace ringfleet::perf {
namespace {

using nlohmann::json;

struct Options {
  int rounds = 5;
  std::vector<int> worlds = {2, 4};
  double seconds = 1;
  std::string bin_dir;
  std::string openmpi;
  bool no_mpi = false;
  bool preferred = false;
  bool interference = false;
};

// A vector of the table. Ours may be narrower on the wire; the others send the
// same bytes as float32.
struct Vector {
  const char* name;
  int64_t bytes;  // As float32 in memory.
  const char* wire;
  int64_t peer_bytes;
};
constexpr Vector kVectors[] = {
    {"4 B", 4, "f32", 4},
    {"14 KB (7168 bf16)", 28672, "bf16", 14336},
    {"28 KB (7168 f32)", 28672, "f32", 28672},
    {"1.8 MB (64 x 7168 f32)", 1835008, "f32", 1835008},
    {"7.3 MB (256 x 7168 f32)", 7340032, "f32", 7340032},
};

// The objects that a program printed: an array, or one a line. Those that are
// wrong end this process: times of wrong results mean nothing.
std::vector<json> Rows(const std::string& text) {
  std::vector<json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_array())
      rows.insert(rows.end(), parsed.begin(), parsed.end());
    if (parsed.is_object()) rows.push_back(parsed);
  }
  for (const json& row : rows) {
    if (row.value("wrong", 1) == 0) continue;
    std::fprintf(stderr, "wrong result: %s\n", row.dump().c_str());
    std::exit(4);
  }
  return rows;
}

std::string JoinPeerBytes() {
  std::string text;
  for (const Vector& vector : kVectors) {
    if (!text.empty()) text += ',';
    text += std::to_string(vector.peer_bytes);
  }
  return text;
}

// One program's p50 for every vector, in us, and the algorithms it took.
struct Series {
  std::map<std::string, double> p50;
  std::map<std::string, std::string> algo;
};

class Comparison {
 public:
  explicit Comparison(const Options& options) : options_(options) {}

  Series Ours(int world, const std::string& transport) const {
    Series series;
    for (const char* wire : {"f32", "bf16"}) {
      std::string bytes;
      for (const Vector& vector : kVectors) {
        if (vector.wire != std::string(wire)) continue;
        if (!bytes.empty()) bytes += ',';
        bytes += std::to_string(vector.bytes);
      }
      for (const json& row :
           Rows(Run({options_.bin_dir + "/ringfleet", "collectives", "--world",
                     std::to_string(world), "--bytes", bytes, "--wire", wire,
                     "--transport", transport, "--seconds",
                     std::to_string(options_.seconds), "--json"}))) {
        for (const Vector& vector : kVectors) {
          if (row["bytes"] != vector.bytes || vector.wire != row["wire"]) {
            continue;
          }
          series.p50[vector.name] = row["p50_us"];
          series.algo[vector.name] = row["algo"];
        }
      }
    }
    return series;
  }

  Series OpenMpi(int world, const std::string& transport) const {
    Series series;
    if (options_.no_mpi) return series;
    for (const json& row :
         Rows(Run({options_.openmpi, "--transport", transport, "--world",
                   std::to_string(world), "--op", "all_reduce", "--bytes",
                   JoinPeerBytes()}))) {
      for (const Vector& vector : kVectors) {
        if (row["bytes"] != vector.peer_bytes) continue;
        series.p50[vector.name] = row["p50_us"];
      }
    }
    return series;
  }

 private:
  std::string Run(std::vector<std::string> command) const {
    return OutputOf(
        {.command = std::move(command), .preferred = options_.preferred});
  }

  const Options& options_;
};

struct Round {
  Series grpc, shm, mpi_tcp, mpi_shm;
};

// The value below which a share of the values lies, between neighbours.
double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double weight = place - static_cast<double>(below);
  return values[below] * (1 - weight) + values[above] * weight;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value < 10 ? "%.1f" : "%.0f", value);
  return text;
}

// "best / median" of the rounds.
std::string Cell(const std::vector<double>& values) {
  if (values.empty()) return "-";
  return Number(Quantile(values, 0)) + " / " + Number(Quantile(values, 0.5));
}

std::string Times(const std::vector<Round>& rounds, Series Round::*series,
                  const char* vector) {
  std::vector<double> times;
  for (const Round& round : rounds) {
    const auto& p50 = (round.*series).p50;
    if (p50.contains(vector)) times.push_back(p50.at(vector));
  }
  return Cell(times);
}

// Median and quartiles of the rounds' own ratios.
std::string Ratios(const std::vector<Round>& rounds, Series Round::*ours,
                   Series Round::*theirs, const char* vector) {
  std::vector<double> ratios;
  for (const Round& round : rounds) {
    const auto& mine = (round.*ours).p50;
    const auto& other = (round.*theirs).p50;
    if (mine.contains(vector) && other.contains(vector)) {
      ratios.push_back(mine.at(vector) / other.at(vector));
    }
  }
  if (ratios.empty()) return "-";
  char text[64];
  std::snprintf(text, sizeof(text), "**%.2f** (%.2f-%.2f)",
                Quantile(ratios, 0.5), Quantile(ratios, 0.25),
                Quantile(ratios, 0.75));
  return text;
}

void Compare(const Options& options) {
  const Comparison comparison(options);
  std::map<int, std::vector<Round>> rounds;
  for (int i = 0; i < options.rounds; ++i) {
    for (const int world : options.worlds) {
      std::fprintf(stderr, "round %d of %d, %d ranks\n", i + 1, options.rounds,
                   world);
      Round round;
      round.mpi_tcp = comparison.OpenMpi(world, "tcp");
      round.grpc = comparison.Ours(world, "grpc");
      round.shm = comparison.Ours(world, "auto");
      round.mpi_shm = comparison.OpenMpi(world, "shm");
      rounds[world].push_back(round);
    }
  }
  std::printf(
      "All-reduce, p50 in us, best / median of %d rounds; ratios within a "
      "round, median (quartiles).\n\n"
      "| ranks, vector | algo | Open MPI tcp | **gRPC** | gRPC / MPI | "
      "Open MPI shm | **same host** | same host / MPI shm |\n"
      "|---|---|---:|---:|---:|---:|---:|---:|\n",
      options.rounds);
  for (const auto& [world, all] : rounds) {
    for (const Vector& vector : kVectors) {
      const char* name = vector.name;
      std::printf("| %d, %s | %s | %s | %s | %s | %s | %s | %s |\n", world,
                  name, all.front().grpc.algo.at(name).c_str(),
                  Times(all, &Round::mpi_tcp, name).c_str(),
                  Times(all, &Round::grpc, name).c_str(),
                  Ratios(all, &Round::grpc, &Round::mpi_tcp, name).c_str(),
                  Times(all, &Round::mpi_shm, name).c_str(),
                  Times(all, &Round::shm, name).c_str(),
                  Ratios(all, &Round::shm, &Round::mpi_shm, name).c_str());
    }
  }
}

// Workers that run without a coordinator, and a cluster file that names them.
class Workers {
 public:
  Workers(const Options& options, int count, const std::string& strategy) {
    std::string folder =
        (std::filesystem::temp_directory_path() / "rf-bench-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) {
      std::perror("temporary folder");
      std::exit(1);
    }
    folder_ = folder;
    for (int rank = 0; rank < count; ++rank) {
      programs_.push_back(std::make_unique<Program>(ProgramOptions{
          .command = {options.bin_dir + "/ringfleet-worker", "--rank",
                      std::to_string(rank), "--listen", "127.0.0.1:0",
                      "--coordinator", "none", "--port-file", PortFile(rank),
                      "--log-file", folder_ + "/log"},
          .environment = {{"GRPC_POLL_STRATEGY", strategy}},
          .preferred = options.preferred}));
    }
    std::ofstream file(cluster_file());
    file << "model: none\ncoordinator: {port: 1}\nworkers:\n";
    for (int rank = 0; rank < count; ++rank) {
      const int port = Port(rank);
      addresses_.push_back("127.0.0.1:" + std::to_string(port));
      file << "  - {port: " << port << "}\n";
    }
  }
  ~Workers() {
    programs_.clear();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string cluster_file() const { return folder_ + "/cluster.yaml"; }
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  std::string PortFile(int rank) const {
    return folder_ + "/port-" + std::to_string(rank);
  }
  int Port(int rank) const {
    for (int tries = 0; tries < 1000; ++tries) {
      int port = 0;
      if (std::ifstream(PortFile(rank)) >> port) return port;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::fprintf(stderr, "worker %d does not listen\n", rank);
    std::exit(1);
  }

  std::string folder_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::string> addresses_;
};

// Processes that compute without end.
class BusyCores {
 public:
  explicit BusyCores(int count, bool preferred) {
    for (int i = 0; i < count; ++i) {
      programs_.push_back(std::make_unique<Program>(
          ProgramOptions{.command = {"/bin/sh", "-c", "while :; do :; done"},
                         .preferred = preferred}));
    }
  }

 private:
  std::vector<std::unique_ptr<Program>> programs_;
};

constexpr int kInterferenceWorld = 2;
constexpr const char* kLoads[] = {"quiet", "control", "compute"};
constexpr const char* kStrategies[] = {"poll", "epoll1"};
constexpr int64_t kInterferenceBytes[] = {4, 28672};

void MeasureInterference(const Options& options) {
  // At least one, though it then shares a core with a worker.
  const int others =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()) -
                      kInterferenceWorld);
  std::map<std::string, std::vector<double>> times;  // By cell.
  const auto cell = [](const std::string& strategy, const std::string& load,
                       int64_t bytes) {
    return strategy + " " + load + " " + std::to_string(bytes);
  };
  for (int i = 0; i < options.rounds; ++i) {
    for (const std::string strategy : kStrategies) {
      for (const std::string load : kLoads) {
        std::fprintf(stderr, "round %d of %d, %s, %s\n", i + 1, options.rounds,
                     strategy.c_str(), load.c_str());
        const Workers workers(options, kInterferenceWorld, strategy);
        const BusyCores busy(load == "compute" ? others : 0, options.preferred);
        std::unique_ptr<ControlLoad> control;
        if (load == "control") {
          control = std::make_unique<ControlLoad>(workers.addresses(),
                                                  std::chrono::milliseconds(1));
        }
        for (const json& row : Rows(OutputOf(
                 {.command = {options.bin_dir + "/ringfleet", "collectives",
                              "--cluster", workers.cluster_file(), "--bytes",
                              "4,28672", "--poll", "spin", "--seconds",
                              std::to_string(options.seconds), "--json"},
   .preferred = options.preferred}))) {
          times[cell(strategy, load, row["bytes"])].push_back(row["p50_us"]);
        }
      }
    }
  }
  std::printf(
      "All-reduce of %d ranks over gRPC, p50 in us, best / median of %d "
      "rounds. "
      "control: a stream to each worker with a request every millisecond; "
      "compute: %d process(es) that never wait, on %u cores.\n\n"
      "| GRPC_POLL_STRATEGY |",
      kInterferenceWorld, options.rounds, others,
      std::thread::hardware_concurrency());
  for (const char* load : kLoads) {
    for (const int64_t bytes : kInterferenceBytes) {
      std::printf(" %s, %s |", load, bytes == 4 ? "4 B" : "28 KB");
    }
  }
  std::printf("\n|---|---:|---:|---:|---:|---:|---:|\n");
  for (const char* strategy : kStrategies) {
    std::printf("| %s |", strategy);
    for (const char* load : kLoads) {
      for (const int64_t bytes : kInterferenceBytes) {
        std::printf(" %s |", Cell(times[cell(strategy, load, bytes)]).c_str());
      }
    }
    std::printf("\n");
  }
}

constexpr char kFooter[] = R"(
Examples:
  build/bin/collectives_bench
  build/bin/collectives_bench --rounds 9 --preferred
  build/bin/collectives_bench --interference

Prints Markdown on stdout, progress on stderr. Without Open MPI, or the right to
install it, --no-mpi. Close everything else, or use --preferred.)";

int Main(int argc, char** argv) {
  Options options;
  options.bin_dir =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  options.openmpi =
      std::string(RINGFLEET_SOURCE_DIR) + "/perf/peers/openmpi.sh";
  CLI::App app("Compares the collectives with Open MPI.");
  app.footer(kFooter);
  app.add_option("--rounds", options.rounds, "Each measures everything once")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--worlds", options.worlds, "Ranks")
      ->delimiter(',')
      ->check(CLI::Range(2, 16))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds,
                 "About what one of our lines may take")
      ->check(CLI::Range(0.01, 600.0))
      ->capture_default_str();
  app.add_option("--bin-dir", options.bin_dir, "Where the programs are")
      ->capture_default_str();
  app.add_flag("--no-mpi", options.no_mpi, "Leave Open MPI out");
  app.add_flag("--preferred", options.preferred,
               "Run everything measured before all else that this machine "
               "does; needs root");
  app.add_flag("--interference", options.interference,
               "What the control plane and other processes cost");
  CLI11_PARSE(app, argc, argv);
  if (options.interference) {
    MeasureInterference(options);
  } else {
    Compare(options);
  }
  return 0;
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) { return ringfleet::perf::Main(argc, argv); }
