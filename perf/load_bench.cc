// SPDX-License-Identifier: Apache-2.0
// How fast workers load a checkpoint: beside plain reading of as many bytes
// with a conversion that does nothing but move bytes through memory, from
// packed shards on the second start, and fetched over loopback from one process
// that has the files. One process a worker, as a fleet has them; the files are
// in the page cache, because the first, unmeasured load reads them.
//
//   load_bench --model DIR [--workers N] [-t THREADS] [--rounds N] --cache-dir
//   DIR
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "cluster/checkpoint/checkpoint_files_service.h"
#include "cluster/checkpoint/open_model.h"
#include "cluster/model/model_spec.h"
#include "cluster/model/model_tensors.h"
#include "cluster/model/shard_plan.h"
#include "cluster/process/file_reader.h"
#include "cluster/rpc/server.h"
#include "kernels/aligned_buffer.h"
#include "kernels/check.h"
#include "kernels/thread_pool.h"
#include "worker/execution/loaded_shard.h"

namespace ringfleet::perf {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;

struct Flags {
  std::string model;
  std::string cache_dir;
  int workers = 2;
  int threads = 0;
  int rounds = 3;
  bool reading_only = false;
  uint64_t fresh_bytes = 0;  // What is measured takes about so many.
};

// Of one worker, or the sum and the longest time over all.
struct Figures {
  double seconds = 0;
  double cpu_seconds = 0;    // Of the process, user and system: the sum.
  uint64_t read_bytes = 0;   // Of tensors.
  uint64_t other_bytes = 0;  // Headers and samples, read beside them.
  uint64_t packed_bytes = 0;
  uint64_t anonymous_bytes = 0;  // More than before, at the end; the largest.
  int from_cache = 0;
};

uint64_t AnonymousBytes() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == "RssAnon:" && file >> kib) return kib << 10;
  }
  return 0;
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) /
             1e6;
}

// A worker's part of the files' bytes, read in order; each byte is changed and
// stored into fresh memory.
Figures ReadPlainly(const Flags& flags, int rank, uint64_t bytes) {
  std::vector<cluster::FileReader> files;
  for (const auto& entry : std::filesystem::directory_iterator(flags.model)) {
    if (!absl::EndsWith(entry.path().string(), ".safetensors")) continue;
    auto file = cluster::FileReader::Open(entry.path().string());
    RF_CHECK(file.ok());
    files.push_back(*std::move(file));
  }
  struct Piece {
    const cluster::FileReader* file;
    uint64_t offset, size, to;
  };
  std::vector<Piece> pieces;
  uint64_t total = 0;
  for (const auto& file : files) {
    const uint64_t part = file.size() / flags.workers;
    for (uint64_t at = 0; at < part && total < bytes; at += kReadBytes) {
      const uint64_t size = std::min({kReadBytes, part - at, bytes - total});
      pieces.push_back({&file, rank * part + at, size, total});
      total += size;
    }
  }
  kernels::ThreadPool pool(flags.threads);
  kernels::AlignedBuffer result(total);
  const auto begun = std::chrono::steady_clock::now();
  pool.ParallelFor(pieces.size(), 1, [&](size_t begin, size_t end) {
    std::vector<char> buffer(kReadBytes);
    for (size_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[i];
      RF_CHECK(piece.file->Read(piece.offset, piece.size, buffer.data()).ok());
      char* to = result.data() + piece.to;
      for (uint64_t j = 0; j < piece.size; ++j) {
        to[j] = static_cast<char>(buffer[j] ^ 0x80);
      }
    }
  });
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begun;
  return {.seconds = seconds.count(), .read_bytes = total};
}

enum class Way { kRead, kCached, kFetch };

// A process that serves the model's files, as its name in the folder above. A
// child of its own, like the workers: gRPC does not live through a fork.
class FileServer {
 public:
  explicit FileServer(const std::string& model) {
    int port[2], life[2];
    RF_CHECK(pipe(port) == 0 && pipe(life) == 0);
    child_ = fork();
    RF_CHECK(child_ >= 0);
    if (child_ == 0) {
      close(life[1]);
      cluster::ConfigureGrpcProcess();
      const std::filesystem::path path(model);
      std::filesystem::current_path(path.parent_path());
      cluster::CheckpointFilesService service;
      service.Serve(path.filename());
      const auto server = cluster::DaemonServer::Start(
          {"127.0.0.1", 0}, /*allow_insecure=*/false,
          [&](grpc::ServerBuilder& builder) {
            builder.RegisterService(&service);
          });
      RF_CHECK(server.ok());
      const int number = (*server)->port();
      RF_CHECK(write(port[1], &number, sizeof(number)) == sizeof(number));
      char end;
      _exit(read(life[0], &end, 1) == 0 ? 0 : 1);  // When the parent ends.
    }
    close(port[1]);
    close(life[0]);
    life_ = life[1];
    RF_CHECK(read(port[0], &port_, sizeof(port_)) == sizeof(port_));
    close(port[0]);
  }
  ~FileServer() {
    close(life_);
    waitpid(child_, nullptr, 0);
  }
  FileServer(const FileServer&) = delete;
  FileServer& operator=(const FileServer&) = delete;

  int port() const { return port_; }

 private:
  pid_t child_ = -1;
  int life_ = -1;
  int port_ = 0;
};

// What a rank must read: its slices of the published tensors, and the scales of
// their fp8 blocks. A slice that begins inside a block, as none of R1's does,
// touches one more row or column of blocks than is counted here.
uint64_t ShareBytes(const cluster::ModelSpec& spec,
                    const cluster::ShardPlan& plan) {
  uint64_t share = 0;
  const auto add = [&](const std::vector<cluster::ModelTensor>& tensors) {
    for (const cluster::ModelTensor& tensor : tensors) {
      if (tensor.memory == cluster::MemoryForm::kNotLoaded) continue;
      const cluster::LocalSlice slice =
          cluster::LocalSliceOf(tensor, spec, plan);
      const uint64_t rows = slice.rows.size();
      const uint64_t columns = slice.columns.size();
      const bool f32 = tensor.stored == cluster::StoredForm::kF32;
      uint64_t bytes = rows * columns * (f32 ? 4 : 2);
      if (tensor.may_be_quantized() && spec.weight_block_rows > 0) {
        const uint64_t block_rows = spec.weight_block_rows;
        const uint64_t block_columns = spec.weight_block_columns;
        bytes = rows * columns +
                sizeof(float) * ((rows + block_rows - 1) / block_rows) *
                    ((columns + block_columns - 1) / block_columns);
      }
      share += bytes * (tensor.each_expert() ? plan.experts.size() : 1);
    }
  };
  add(cluster::RootTensors(spec));
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    add(cluster::LayerTensors(spec, spec.IsMoeLayer(i)));
  }
  if (spec.num_nextn_predict_layers > 0) add(cluster::MtpTensors(spec));
  return share;
}

// All ranks' together.
uint64_t SharesBytes(const Flags& flags) {
  const auto spec = cluster::LoadModelSpec(flags.model);
  RF_CHECK(spec.ok());
  uint64_t bytes = 0;
  for (int rank = 0; rank < flags.workers; ++rank) {
    const auto plan =
        cluster::PlanShard(*spec, {.tensor = flags.workers}, rank);
    RF_CHECK(plan.ok());
    bytes += ShareBytes(*spec, *plan);
  }
  return bytes;
}

Figures Load(const Flags& flags, int rank, Way way, int server_port) {
  v1::LoadRequest request;
  request.set_model_path(flags.model);
  if (way == Way::kFetch) {
    // Where the model's name names nothing.
    std::filesystem::current_path(flags.cache_dir);
    cluster::ConfigureGrpcProcess();
    request.set_model_path(std::filesystem::path(flags.model).filename());
    v1::FileSource* source = request.add_sources();
    source->set_name("the server");
    source->set_address("127.0.0.1:" + std::to_string(server_port));
  }
  request.set_dtype(v1::DTYPE_INT8);
  request.set_slots(1);
  request.set_context(64);
  request.mutable_layout()->set_rank(rank);
  v1::Mesh* mesh = request.mutable_layout()->mutable_mesh();
  mesh->set_data(1);
  mesh->set_expert(1);
  mesh->set_tensor(flags.workers);
  if (way == Way::kCached) {
    request.set_shard_cache(flags.cache_dir);
    request.set_await_shard_cache(true);
  }
  const uint64_t before = AnonymousBytes();
  uint64_t most = before;
  const auto begun = std::chrono::steady_clock::now();
  const auto shard = worker::LoadShardFor(
      request,
      {.threads = flags.threads,
       .available_memory_bytes = std::numeric_limits<uint64_t>::max()},
      [&most](const v1::LoadProgress&) {
        most = std::max(most, AnonymousBytes());
        return absl::OkStatus();
      });
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begun;
  if (!shard.ok()) {
    std::fprintf(stderr, "%s\n", std::string(shard.status().message()).c_str());
    _exit(1);
  }
  return {
      .seconds = seconds.count(),
      .read_bytes =
          (*shard)->tensor_bytes_read + (*shard)->tensor_bytes_fetched,
      .other_bytes = (*shard)->other_bytes_read + (*shard)->other_bytes_fetched,
      .packed_bytes = (*shard)->resident_bytes,
      .anonymous_bytes = std::max(most, AnonymousBytes()) - before,
      .from_cache = (*shard)->from_cache ? 1 : 0};
}

// Memory that was free for a while may have been given back to a hypervisor,
// and then takes several times as long to be had as any other. Has it made
// present, so that all that is measured begins alike.
void WarmMemory(uint64_t bytes) {
  const pid_t child = fork();
  RF_CHECK(child >= 0);
  if (child == 0) {
    kernels::AlignedBuffer buffer(bytes);
    for (uint64_t i = 0; i < bytes; i += 4096) buffer.data()[i] = 1;
    _exit(0);
  }
  int status = 0;
  RF_CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Runs `body` in a process for each worker, at the same time.
Figures OnWorkers(const Flags& flags,
                  const std::function<Figures(int rank)>& body) {
  if (flags.fresh_bytes > 0) WarmMemory(flags.fresh_bytes);
  int ends[2];
  RF_CHECK(pipe(ends) == 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < flags.workers; ++rank) {
    const pid_t child = fork();
    RF_CHECK(child >= 0);
    children.push_back(child);
    if (child > 0) continue;
    Figures mine = body(rank);
    mine.cpu_seconds = CpuSeconds();
    _exit(write(ends[1], &mine, sizeof(mine)) == sizeof(mine) ? 0 : 1);
  }
  close(ends[1]);
  Figures all;
  Figures mine;
  int heard = 0;
  for (; read(ends[0], &mine, sizeof(mine)) == sizeof(mine); ++heard) {
    all.seconds = std::max(all.seconds, mine.seconds);
    all.cpu_seconds += mine.cpu_seconds;
    all.read_bytes += mine.read_bytes;
    all.other_bytes += mine.other_bytes;
    all.packed_bytes += mine.packed_bytes;
    all.anonymous_bytes = std::max(all.anonymous_bytes, mine.anonymous_bytes);
    all.from_cache += mine.from_cache;
  }
  close(ends[0]);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  RF_CHECK(heard == flags.workers);
  return all;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of one thing that is measured, by round.
struct Series {
  std::vector<double> seconds, cpu_seconds;
  void Add(const Figures& figures) {
    seconds.push_back(figures.seconds);
    cpu_seconds.push_back(figures.cpu_seconds);
  }
};

void Print(const char* what, const Series& series, uint64_t bytes) {
  const double seconds = Median(series.seconds);
  std::printf("%-34s %7.3f s  %6.2f GB/s  %7.3f s of CPU\n", what, seconds,
              static_cast<double>(bytes) / 1e9 / seconds,
              Median(series.cpu_seconds));
}

// a / b, round by round.
void PrintRatios(const char* what, const std::vector<double>& a,
                 const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  std::printf("%s: %.2f (%.2f to %.2f)\n", what, Median(ratios),
              *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()));
}

void Run(Flags flags) {
  const FileServer server(flags.model);
  const auto load = [&](Way way) {
    return OnWorkers(
        flags, [&](int rank) { return Load(flags, rank, way, server.port()); });
  };
  const Figures warm = load(Way::kRead);
  const uint64_t share = warm.read_bytes / flags.workers;
  flags.fresh_bytes = std::max(warm.read_bytes, warm.packed_bytes) * 9 / 8;
  Series plain, first, saving, second, fetched;
  uint64_t fetched_anonymous = 0;
  if (!flags.reading_only) saving.Add(load(Way::kCached));
  for (int round = 0; round < flags.rounds; ++round) {
    plain.Add(OnWorkers(
        flags, [&](int rank) { return ReadPlainly(flags, rank, share); }));
    first.Add(load(Way::kRead));
    if (flags.reading_only) continue;
    const Figures mapped = load(Way::kCached);
    RF_CHECK(mapped.from_cache == flags.workers && mapped.read_bytes == 0);
    second.Add(mapped);
    const Figures remote = load(Way::kFetch);
    RF_CHECK(remote.read_bytes == warm.read_bytes);
    fetched.Add(remote);
    fetched_anonymous = std::max(fetched_anonymous, remote.anonymous_bytes);
  }
  Print("plain reading and moving", plain, warm.read_bytes);
  Print("load", first, warm.read_bytes);
  PrintRatios("rate of a load / plain, by time", plain.seconds, first.seconds);
  PrintRatios("rate of a load / plain, by CPU time", plain.cpu_seconds,
              first.cpu_seconds);
  if (flags.reading_only) return;
  Print("load that keeps its shards, once", saving, warm.read_bytes);
  Print("load from packed shards", second, warm.packed_bytes);
  Print("load fetched over loopback", fetched, warm.read_bytes);
  PrintRatios("rate fetched / rate of a load, by time", first.seconds,
              fetched.seconds);
  PrintRatios("rate fetched / rate of a load, by CPU time", first.cpu_seconds,
              fetched.cpu_seconds);
  PrintRatios("load / load from packed shards, by time", first.seconds,
              second.seconds);
  PrintRatios("load / load from packed shards, by CPU time", first.cpu_seconds,
              second.cpu_seconds);
  const auto beside = [&](uint64_t anonymous_bytes) {
    return (static_cast<double>(anonymous_bytes) -
            static_cast<double>(warm.packed_bytes) / flags.workers) /
           (1 << 20);
  };
  const auto gigabytes = [](uint64_t bytes) {
    return static_cast<double>(bytes) / 1e9;
  };
  std::printf(
      "%d workers of %d threads, medians of %d rounds; %.3f GB packed\n",
      flags.workers, flags.threads, flags.rounds, gigabytes(warm.packed_bytes));
  const uint64_t shares = SharesBytes(flags);
  const uint64_t all_read = warm.read_bytes + warm.other_bytes;
  std::printf(
      "read: %.6f GB of tensors and %.6f GB beside them; shares of %.6f GB "
      "and %+.3f %%, bound +2 %%\n",
      gigabytes(warm.read_bytes), gigabytes(warm.other_bytes),
      gigabytes(shares), 100 * (gigabytes(all_read) / gigabytes(shares) - 1));
  std::printf(
      "memory: at most a worker's packed shard and %.0f MiB, %.0f when it "
      "fetches; bound 256 MiB\n",
      beside(warm.anonymous_bytes), beside(fetched_anonymous));
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) {
  ringfleet::perf::Flags flags;
  CLI::App app("Measures how fast workers load");
  app.add_option("--model", flags.model, "Folder of a checkpoint")->required();
  app.add_option("--cache-dir", flags.cache_dir,
                 "For packed shards; a new folder, to be deleted afterwards")
      ->required();
  app.add_option("--workers", flags.workers)->check(CLI::Range(1, 16));
  app.add_option("-t,--threads", flags.threads, "Of a worker [cores / N]");
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 99));
  app.add_flag("--reading-only", flags.reading_only,
               "Loads from the checkpoint, not from packed shards or peers");
  CLI11_PARSE(app, argc, argv);
  if (flags.threads == 0) {
    flags.threads =
        std::max<int>(1, std::thread::hardware_concurrency() / flags.workers);
  }
  flags.model = std::filesystem::canonical(flags.model);
  ringfleet::perf::Run(flags);
}
