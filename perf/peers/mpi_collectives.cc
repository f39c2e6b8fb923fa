// SPDX-License-Identifier: Apache-2.0
// Times collectives of an MPI library and prints one JSON object a line:
//
//   {"op","library","transport","world","bytes","p50_us","p99_us","wrong"}
//
// `bytes` counts the whole vector: what an all_reduce or a broadcast leaves on
// every rank, what an all_gather gathers, a reduce_scatter scatters and one
// rank sends in an all_to_all (its own part included). `wrong` counts elements
// that differ from the expected ones, over all ranks. Built and started by
// openmpi.sh.
#include <getopt.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "perf/iteration_times.h"

namespace ringfleet::perf {
namespace {

struct Options {
  std::vector<std::string> ops = {"all_reduce", "all_gather", "reduce_scatter",
                                  "all_to_all", "broadcast",  "barrier"};
  std::vector<size_t> bytes = {4, 14336, 28672, 1835008, 7340032};
  std::string transport;  // Only printed.
  int iterations = 0;     // 0: by size.
  bool barrier = true;    // Before every timed iteration.
};

// The buffers of one operation over `count` floats.
class Collective {
 public:
  Collective(const std::string& op, size_t count) : op_(op), count_(count) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_);
    for (int r = 0; r <= world_; ++r) {
      offsets_.push_back(static_cast<int>(ShareBegin(count, r, world_)));
    }
    for (int r = 0; r < world_; ++r) {
      sizes_.push_back(offsets_[r + 1] - offsets_[r]);
      // Share `rank` of every rank arrives here in an all_to_all.
      own_sizes_.push_back(offsets_[rank_ + 1] - offsets_[rank_]);
      own_offsets_.push_back(r * own_sizes_.back());
    }
    sent_.resize(count);
    for (size_t i = 0; i < count; ++i) sent_[i] = Contribution(rank_, i);
    received_.resize(op == "all_to_all" ? world_ * own_sizes_[0] : count);
    Clear();
  }

  // Forgets the result of the last run.
  void Clear() {
    received_.assign(received_.size(), -1.0f);
    if (op_ == "broadcast" && rank_ == 0) received_ = sent_;
  }

  void Run() {
    const int count = static_cast<int>(count_);
    if (op_ == "all_reduce") {
      MPI_Allreduce(sent_.data(), received_.data(), count, MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    } else if (op_ == "all_gather" && even()) {
      MPI_Allgather(own(), sizes_[0], MPI_FLOAT, received_.data(), sizes_[0],
                    MPI_FLOAT, MPI_COMM_WORLD);
    } else if (op_ == "all_gather") {
      MPI_Allgatherv(own(), sizes_[rank_], MPI_FLOAT, received_.data(),
                     sizes_.data(), offsets_.data(), MPI_FLOAT, MPI_COMM_WORLD);
    } else if (op_ == "reduce_scatter") {
      MPI_Reduce_scatter(sent_.data(), received_.data(), sizes_.data(),
                         MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (op_ == "all_to_all" && even()) {
      MPI_Alltoall(sent_.data(), sizes_[0], MPI_FLOAT, received_.data(),
                   sizes_[0], MPI_FLOAT, MPI_COMM_WORLD);
    } else if (op_ == "all_to_all") {
      MPI_Alltoallv(sent_.data(), sizes_.data(), offsets_.data(), MPI_FLOAT,
                    received_.data(), own_sizes_.data(), own_offsets_.data(),
                    MPI_FLOAT, MPI_COMM_WORLD);
    } else if (op_ == "broadcast") {
      MPI_Bcast(received_.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else {
      MPI_Barrier(MPI_COMM_WORLD);
    }
  }

  // Wrong elements of all ranks, on every rank.
  long Wrong() const {
    long wrong = 0;
    const auto check = [&](size_t place, float expected) {
      wrong += received_[place] != expected;
    };
    const size_t begin = offsets_[rank_], size = sizes_[rank_];
    if (op_ == "all_reduce") {
      for (size_t i = 0; i < count_; ++i)
        check(i, SumOfContributions(world_, i));
    } else if (op_ == "reduce_scatter") {
      for (size_t i = 0; i < size; ++i) {
        check(i, SumOfContributions(world_, begin + i));
      }
    } else if (op_ == "all_gather") {
      for (int r = 0; r < world_; ++r) {
        for (int i = offsets_[r]; i < offsets_[r + 1]; ++i) {
          check(i, Contribution(r, i));
        }
      }
    } else if (op_ == "all_to_all") {
      for (int r = 0; r < world_; ++r) {
        for (size_t i = 0; i < size; ++i) {
          check(r * size + i, Contribution(r, begin + i));
        }
      }
    } else if (op_ == "broadcast") {
      for (size_t i = 0; i < count_; ++i) check(i, Contribution(0, i));
    }
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return wrong;
  }

 private:
  bool even() const { return count_ % static_cast<size_t>(world_) == 0; }
  const float* own() const { return sent_.data() + offsets_[rank_]; }

  const std::string op_;
  const size_t count_;
  int rank_ = 0, world_ = 0;
  std::vector<int> offsets_, sizes_, own_sizes_, own_offsets_;
  std::vector<float> sent_, received_;
};

std::string Library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  return std::string(text, std::strcspn(text, ",\n"));
}

// Returns the number of wrong elements.
long Measure(const Options& options, const std::string& op, size_t bytes) {
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  Collective collective(op, bytes / sizeof(float));
  IterationCounts counts = IterationsFor(bytes);
  if (options.iterations > 0) counts.timed = options.iterations;

  for (int i = 0; i < counts.warm_up; ++i) collective.Run();
  std::vector<double> times;
  for (int i = 0; i < counts.timed; ++i) {
    if (options.barrier) MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    collective.Run();
    times.push_back((MPI_Wtime() - start) * 1e6 / world);
  }
  MPI_Allreduce(MPI_IN_PLACE, times.data(), counts.timed, MPI_DOUBLE, MPI_SUM,
                MPI_COMM_WORLD);
  collective.Clear();
  collective.Run();
  const long wrong = collective.Wrong();
  if (rank == 0) {
    std::printf(
        "{\"op\":\"%s\",\"library\":\"%s\",\"transport\":\"%s\","
        "\"world\":%d,\"bytes\":%zu,\"p50_us\":%.2f,\"p99_us\":%.2f,"
        "\"wrong\":%ld}\n",
        op.c_str(), Library().c_str(), options.transport.c_str(), world, bytes,
        Percentile(times, 0.5), Percentile(times, 0.99), wrong);
    std::fflush(stdout);
  }
  return wrong;
}

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

bool Parse(int argc, char** argv, Options& options) {
  const option known[] = {{"op", required_argument, nullptr, 'o'},
                          {"bytes", required_argument, nullptr, 'b'},
                          {"iterations", required_argument, nullptr, 'i'},
                          {"transport", required_argument, nullptr, 't'},
                          {"no-barrier", no_argument, nullptr, 'n'},
                          {}};
  for (int c; (c = getopt_long(argc, argv, "", known, nullptr)) != -1;) {
    if (c == 'o') {
      const std::vector<std::string> all = options.ops;
      options.ops = SplitAtCommas(optarg);
      for (const std::string& op : options.ops) {
        if (std::find(all.begin(), all.end(), op) == all.end()) return false;
      }
    } else if (c == 'b') {
      options.bytes.clear();
      for (const std::string& text : SplitAtCommas(optarg)) {
        const size_t bytes = std::strtoull(text.c_str(), nullptr, 10);
        // Counts of MPI are ints.
        if (bytes == 0 || bytes % sizeof(float) != 0 || bytes >> 31 != 0) {
          return false;
        }
        options.bytes.push_back(bytes);
      }
    } else if (c == 'i') {
      options.iterations = std::atoi(optarg);
    } else if (c == 't') {
      options.transport = optarg;
    } else if (c == 'n') {
      options.barrier = false;
    } else {
      return false;
    }
  }
  return optind == argc;
}

}  // namespace
}  // namespace ringfleet::perf

int main(int argc, char** argv) {
  using namespace ringfleet::perf;
  MPI_Init(&argc, &argv);
  Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: mpi_collectives [--op LIST] [--bytes LIST] "
                 "[--iterations N] [--transport NAME] [--no-barrier]\n"
                 "  bytes: multiples of 4 below 2 GiB\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  long wrong = 0;
  for (const std::string& op : options.ops) {
    if (op == "barrier") {
      wrong += Measure(options, op, 0);
      continue;
    }
    for (const size_t bytes : options.bytes) {
      wrong += Measure(options, op, bytes);
    }
  }
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
