// SPDX-License-Identifier: Apache-2.0
#include "perf/twin_schedules.h"

#include <algorithm>

#include "perf/iteration_times.h"

namespace ringfleet::perf {
namespace {

// Elements that are reduced at a time: the sum stays in the first-level cache
// while the ranks are added one after the other.
constexpr size_t kBlock = 4096;

void Add(const float* __restrict a, const float* __restrict b,
         float* __restrict sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

void Accumulate(const float* __restrict a, float* __restrict sum,
                size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += a[i];
}

// Sums elements [begin, end) of all sources in rank order.
void Reduce(const std::vector<const float*>& sources, float* sum, size_t begin,
            size_t end) {
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t count = std::min(kBlock, end - at);
    Add(sources[0] + at, sources[1] + at, sum + at, count);
    for (size_t r = 2; r < sources.size(); ++r) {
      Accumulate(sources[r] + at, sum + at, count);
    }
  }
}

}  // namespace

bool TwinCollective::Exists(TwinOp op, const std::string& algo) {
  return algo == "one_shot" || algo == "ring" || algo == "bidirectional_ring" ||
         (algo == "two_shot" && op == TwinOp::kAllReduce);
}

TwinCollective::TwinCollective(TcpMesh& mesh, TwinOp op,
                               const std::string& algo, size_t count,
                               size_t chunk)
    : mesh_(mesh),
      op_(op),
      algo_(algo),
      count_(count),
      chunk_(chunk),
      input_(count),
      output_(count) {
  if (algo == "ring" || algo == "bidirectional_ring") {
    received_.assign(2, std::vector<float>(chunk));
    return;
  }
  received_.resize(mesh.size());
  sources_.resize(mesh.size());
  const size_t size = algo == "one_shot" && op == TwinOp::kAllReduce
                          ? count
                          : Size(mesh.rank());
  for (int r = 0; r < mesh.size(); ++r) {
    if (r != mesh.rank()) received_[r].resize(size);
    sources_[r] = received_[r].data();
  }
}

size_t TwinCollective::Begin(int segment) const {
  return SegmentBegin(count_, segment, mesh_.size());
}

void TwinCollective::Run() {
  if (algo_ == "ring" || (algo_ == "bidirectional_ring" && mesh_.size() == 2)) {
    StartRing(1, 0, 1);
  } else if (algo_ == "bidirectional_ring") {
    StartRing(1, 0, 2);
    StartRing(-1, 1, 2);
  } else if (op_ == TwinOp::kAllGather) {
    GatherDirectly();
  } else if (op_ == TwinOp::kAllReduce && algo_ == "one_shot") {
    for (int k = 1; k < mesh_.size(); ++k) {
      mesh_.Send(mesh_.Neighbour(k), input_.data(), count_ * sizeof(float));
    }
    ReduceDirectly(0, count_, /*send_reduced=*/false);
  } else {
    SendSegments();
    ReduceDirectly(Begin(mesh_.rank()), Size(mesh_.rank()),
                   /*send_reduced=*/algo_ == "two_shot");
  }
  mesh_.Run();
}

void TwinCollective::SendSegments() {
  // Targets are staggered, so that not all ranks send to the same one.
  for (int k = 1; k < mesh_.size(); ++k) {
    const int to = mesh_.Neighbour(k);
    mesh_.Send(to, input_.data() + Begin(to), Size(to) * sizeof(float));
  }
}

void TwinCollective::ReduceDirectly(size_t begin, size_t count,
                                    bool send_reduced) {
  sources_[mesh_.rank()] = input_.data() + begin;
  arrived_.assign(mesh_.size(), 0);
  arrived_[mesh_.rank()] = count;
  sum_ = output_.data() + begin;
  to_reduce_ = count;
  reduced_ = sent_ = 0;
  send_reduced_ = send_reduced;
  for (int k = 1; k < mesh_.size(); ++k) {
    const int from = mesh_.Neighbour(-k);
    mesh_.Receive(from, received_[from].data(), count * sizeof(float),
                  [this, from](size_t bytes) { OnContribution(from, bytes); });
    if (!send_reduced) continue;
    for (size_t at = 0; at < Size(from); at += chunk_) {
      mesh_.Receive(from, output_.data() + Begin(from) + at,
                    std::min(chunk_, Size(from) - at) * sizeof(float));
    }
  }
}

void TwinCollective::OnContribution(int from, size_t bytes) {
  arrived_[from] = bytes / sizeof(float);
  const size_t ready = *std::min_element(arrived_.begin(), arrived_.end());
  if (ready < reduced_ + kBlock && ready < to_reduce_) return;
  Reduce(sources_, sum_, reduced_, ready);
  reduced_ = ready;
  while (send_reduced_ && sent_ < to_reduce_) {
    const size_t size = std::min(chunk_, to_reduce_ - sent_);
    if (sent_ + size > reduced_) return;
    for (int k = 1; k < mesh_.size(); ++k) {
      mesh_.Send(mesh_.Neighbour(k), sum_ + sent_, size * sizeof(float));
    }
    sent_ += size;
  }
}

void TwinCollective::GatherDirectly() {
  const size_t begin = Begin(mesh_.rank()), size = Size(mesh_.rank());
  for (int k = 1; k < mesh_.size(); ++k) {
    const int to = mesh_.Neighbour(k), from = mesh_.Neighbour(-k);
    mesh_.Send(to, input_.data() + begin, size * sizeof(float));
    mesh_.Receive(from, output_.data() + Begin(from),
                  Size(from) * sizeof(float));
  }
  std::copy_n(input_.begin() + begin, size, output_.begin() + begin);
}

void TwinCollective::StartRing(int direction, size_t part, size_t parts) {
  const int to = mesh_.Neighbour(direction);
  const int from = mesh_.Neighbour(-direction);
  const int steps = mesh_.size() - 1;
  const int reducing = op_ == TwinOp::kAllGather ? 0 : steps;
  const int hops = op_ == TwinOp::kReduceScatter ? steps : reducing + steps;
  // Calls visit(first element, number of elements) for the segment's chunks.
  const auto for_chunks = [&](int segment, auto visit) {
    const size_t begin =
        Begin(segment) + SegmentBegin(Size(segment), part, parts);
    const size_t end =
        Begin(segment) + SegmentBegin(Size(segment), part + 1, parts);
    for (size_t at = begin; at < end; at += chunk_) {
      visit(at, std::min(chunk_, end - at));
    }
  };

  // A segment starts its way behind the rank that ends up with its sum; without
  // a reduction, at its owner.
  const int first = reducing > 0 ? from : mesh_.rank();
  for_chunks(first, [&](size_t at, size_t size) {
    mesh_.Send(to, input_.data() + at, size * sizeof(float));
    if (reducing == 0) std::copy_n(&input_[at], size, &output_[at]);
  });
  // Every hop brings the segment before the one of the hop before it.
  for (int hop = 0; hop < hops; ++hop) {
    const int distance = (reducing > 0 ? 2 : 1) + hop;
    const bool reduce = hop < reducing, forward = hop + 1 < hops;
    for_chunks(
        mesh_.Neighbour(-direction * distance), [&](size_t at, size_t size) {
          // Partial sums of a connection arrive one after the other, so that
          // all can use one place.
          float* const place = (reduce ? received_[part].data() : &output_[at]);
          mesh_.Receive(
              from, place, size * sizeof(float),
              [this, to, at, size, place, reduce, forward](size_t arrived) {
                if (arrived < size * sizeof(float)) return;
                if (reduce) Add(place, &input_[at], &output_[at], size);
                if (forward) mesh_.Send(to, &output_[at], size * sizeof(float));
              });
        });
  }
}

}  // namespace ringfleet::perf
