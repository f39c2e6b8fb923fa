// SPDX-License-Identifier: Apache-2.0
#include "cluster/checkpoint/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cluster/checkpoint/safetensors_slice.h"
#include "cluster/model/families.h"
#include "cluster/process/status_macros.h"

namespace ringfleet::cluster {
namespace {

constexpr absl::string_view kBackbone = "model.";
constexpr int kSampledPages = 64;
constexpr size_t kPageBytes = 4096;
constexpr size_t kHashRead = size_t{1} << 20;

// True for norms and biases, which have one dimension, and for routers. They
// are small beside the rest, and one changed value changes many tokens. The
// shape that each int4 weight has beside it has one dimension, too.
bool IsHashedWholly(const TensorInfo& tensor) {
  return (tensor.shape.size() == 1 &&
          !absl::EndsWith(tensor.name, ".weight_shape")) ||
         absl::EndsWith(tensor.name, ".mlp.gate.weight");
}

// XXH3-128 of parts, each preceded by its length, so that no two lists of parts
// share one stream of bytes.
class PartsHash {
 public:
  PartsHash() : state_(XXH3_createState(), XXH3_freeState) {
    XXH3_128bits_reset(state_.get());
  }
  void Add(absl::string_view part) {
    const uint64_t size = part.size();
    XXH3_128bits_update(state_.get(), &size, sizeof(size));
    XXH3_128bits_update(state_.get(), part.data(), part.size());
  }
  std::string Hex() const {
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state_.get()));
    std::string hex;
    for (const unsigned char byte : digest.digest) {
      absl::StrAppendFormat(&hex, "%02x", byte);
    }
    return hex;
  }

 private:
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

}  // namespace

struct Checkpoint::Impl {
  explicit Impl(std::unique_ptr<const CheckpointSource> opened)
      : source(std::move(opened)), contents(source->contents()) {
    for (size_t i = 0; i < contents.files.size(); ++i) {
      if (source->Fetches(static_cast<int>(i))) continue;
      other_bytes_read += contents.files[i].header_bytes;
    }
    for (const NamePrefixes& known : KnownNamePrefixes()) {
      if (!Has(absl::StrCat(known.backbone, "embed_tokens.weight"))) continue;
      prefixes = known;
      break;
    }
  }

  bool Has(absl::string_view name) const {
    return contents.tensors.contains(name) ||
           contents.unsupported.contains(name);
  }

  // Returns the name that the files have for `name`.
  std::string StoredName(absl::string_view name) const {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, kBackbone)) {
      const std::string stored = absl::StrCat(prefixes.backbone, rest);
      if (Has(stored)) return stored;
    } else if (const std::string stored = absl::StrCat(prefixes.root, name);
               Has(stored)) {
      return stored;
    }
    return std::string(name);
  }

  // Reverses StoredName.
  std::string PlainName(absl::string_view stored) const {
    absl::string_view rest = stored;
    if (absl::ConsumePrefix(&rest, prefixes.backbone)) {
      return absl::StrCat(kBackbone, rest);
    }
    absl::ConsumePrefix(&rest, prefixes.root);
    return std::string(rest);
  }

  // Counts bytes of a tensor in `file`.
  void Count(int file, uint64_t bytes) const {
    (source->Fetches(file) ? bytes_fetched : bytes_read)
        .fetch_add(bytes, std::memory_order_relaxed);
  }

  // Counts bytes of no tensor that is loaded.
  void CountOther(int file, uint64_t bytes) const {
    if (source->Fetches(file)) return;  // The source counts all.
    other_bytes_read.fetch_add(bytes, std::memory_order_relaxed);
  }

  const std::unique_ptr<const CheckpointSource> source;
  const CheckpointContents& contents;
  // Those of the files' names; callers' names have the plain ones.
  NamePrefixes prefixes = KnownNamePrefixes().front();
  mutable std::atomic<uint64_t> bytes_read = 0;
  mutable std::atomic<uint64_t> bytes_fetched = 0;
  mutable std::atomic<uint64_t> other_bytes_read = 0;
};

Checkpoint::Checkpoint(std::unique_ptr<const CheckpointSource> source)
    : impl_(std::make_unique<Impl>(std::move(source))) {}
Checkpoint::~Checkpoint() = default;

absl::StatusOr<const TensorInfo*> Checkpoint::Find(
    absl::string_view plain_name) const {
  const std::string name = impl_->StoredName(plain_name);
  if (const auto it = impl_->contents.tensors.find(name);
      it != impl_->contents.tensors.end()) {
    return &it->second;
  }
  if (const auto it = impl_->contents.unsupported.find(name);
      it != impl_->contents.unsupported.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": dtype ", it->second, ", want F32, BF16, F16, F8_E4M3 or I8"));
  }
  return absl::NotFoundError(
      absl::StrCat("no tensor ", name, " in ", impl_->contents.model));
}

std::vector<std::string> Checkpoint::Names() const {
  std::vector<std::string> names;
  names.reserve(impl_->contents.tensors.size() +
                impl_->contents.unsupported.size());
  for (const auto& [name, info] : impl_->contents.tensors)
    names.push_back(impl_->PlainName(name));
  for (const auto& [name, dtype] : impl_->contents.unsupported)
    names.push_back(impl_->PlainName(name));
  std::sort(names.begin(), names.end());
  return names;
}

const std::string& Checkpoint::FileName(const TensorInfo& tensor) const {
  return impl_->contents.files[tensor.file].name;
}

absl::StatusOr<std::unique_ptr<const OpenSlice>> Checkpoint::Open(
    const TensorSlice& slice, float limit) const {
  return SafetensorsSlice::Open(*this, slice, limit);
}

absl::Status Checkpoint::Read(const TensorInfo& tensor, uint64_t offset,
                              size_t size, void* destination) const {
  if (offset > tensor.bytes || size > tensor.bytes - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.name, ": read of bytes [", offset, ", +", size,
                     "), want a range within ", tensor.bytes));
  }
  if (size == 0) return absl::OkStatus();
  RF_RETURN_IF_ERROR(
      Annotate(impl_->source->Read(tensor.file, tensor.offset + offset, size,
                                   destination),
               tensor.name));
  impl_->Count(tensor.file, size);
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadRows(const TensorInfo& tensor, uint64_t offset,
                                  size_t size, uint64_t stride, size_t count,
                                  char* destination) const {
  if (size == 0 || count == 0) return absl::OkStatus();
  if (stride == size) {
    return Read(tensor, offset, size * count, destination);
  }
  uint64_t span = 0;  // From the first range's begin to the last one's end.
  if (__builtin_mul_overflow(stride, count - 1, &span) ||
      __builtin_add_overflow(span, size, &span) || offset > tensor.bytes ||
      span > tensor.bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.name, ": read of ", count, " ranges of ", size, " bytes, ",
        stride, " apart, from ", offset, ", want them within ", tensor.bytes));
  }
  RF_RETURN_IF_ERROR(
      Annotate(impl_->source->ReadRows(tensor.file, tensor.offset + offset,
                                       size, stride, count, destination),
               tensor.name));
  impl_->Count(tensor.file, size * count);
  return absl::OkStatus();
}

uint64_t Checkpoint::bytes_read() const {
  return impl_->bytes_read.load(std::memory_order_relaxed);
}

uint64_t Checkpoint::other_bytes_read() const {
  return impl_->other_bytes_read.load(std::memory_order_relaxed);
}

uint64_t Checkpoint::bytes_fetched() const {
  return impl_->bytes_fetched.load(std::memory_order_relaxed);
}

uint64_t Checkpoint::other_bytes_fetched() const {
  // Tensors are counted first: a fetch meanwhile only makes the rest larger.
  const uint64_t tensors = bytes_fetched();
  return impl_->source->bytes_fetched() - tensors;
}

std::string Checkpoint::config() const {
  return impl_->contents.config.value_or("");
}

std::string Checkpoint::params() const {
  return impl_->contents.params.value_or("");
}

absl::StatusOr<uint64_t> Checkpoint::Hash(const TensorInfo& tensor) const {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(
      XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(std::min<uint64_t>(kHashRead, tensor.bytes));
  for (uint64_t offset = 0; offset < tensor.bytes; offset += buffer.size()) {
    const size_t size =
        std::min<uint64_t>(buffer.size(), tensor.bytes - offset);
    RF_RETURN_IF_ERROR(
        Annotate(impl_->source->Read(tensor.file, tensor.offset + offset, size,
                                     buffer.data()),
                 tensor.name));
    impl_->CountOther(tensor.file, size);
    XXH3_64bits_update(state.get(), buffer.data(), size);
  }
  return XXH3_64bits_digest(state.get());
}

absl::StatusOr<std::vector<Checkpoint::FileFacts>> Checkpoint::Describe()
    const {
  const auto whole = [](absl::string_view name, absl::string_view text) {
    return FileFacts{.name = std::string(name),
                     .bytes = text.size(),
                     .header_hash = XXH3_64bits(text.data(), text.size())};
  };
  std::vector<FileFacts> all = {whole("config.json", config()),
                                whole("model.safetensors.index.json",
                                      impl_->contents.index.value_or(""))};
  if (impl_->contents.params.has_value()) {
    all.push_back(whole("params.json", params()));
  }
  std::string page(kPageBytes, '\0');
  for (size_t i = 0; i < impl_->contents.files.size(); ++i) {
    const CheckpointContents::File& file = impl_->contents.files[i];
    FileFacts facts = {.name = file.name,
                       .bytes = file.size,
                       .header_hash = file.header_hash.low64};
    // Page p starts at p/63 of the way from the first to the last page.
    const uint64_t data = file.size - file.header_bytes;
    const uint64_t last = data > kPageBytes ? data - kPageBytes : 0;
    for (uint64_t p = 0; p < kSampledPages; ++p) {
      const uint64_t offset =
          file.header_bytes + last / (kSampledPages - 1) * p +
          last % (kSampledPages - 1) * p / (kSampledPages - 1);
      const size_t size = std::min<uint64_t>(kPageBytes, file.size - offset);
      RF_RETURN_IF_ERROR(
          impl_->source->Read(static_cast<int>(i), offset, size, page.data()));
      impl_->CountOther(static_cast<int>(i), size);
      facts.pages.emplace_back(offset, XXH3_64bits(page.data(), size));
    }
    all.push_back(std::move(facts));
  }
  std::vector<const TensorInfo*> wholly;
  for (const auto& [name, tensor] : impl_->contents.tensors) {
    if (IsHashedWholly(tensor)) wholly.push_back(&tensor);
  }
  std::sort(wholly.begin(), wholly.end(),
            [](const TensorInfo* a, const TensorInfo* b) {
              return std::tie(a->file, a->offset, a->name) <
                     std::tie(b->file, b->offset, b->name);
            });
  const size_t texts = all.size() - impl_->contents.files.size();
  for (const TensorInfo* tensor : wholly) {
    RF_ASSIGN_OR_RETURN(const uint64_t hash, Hash(*tensor));
    all[texts + tensor->file].tensors.emplace_back(tensor->name, hash);
  }
  return all;
}

absl::StatusOr<std::string> Checkpoint::Fingerprint() const {
  RF_ASSIGN_OR_RETURN(const std::vector<FileFacts> files, Describe());
  PartsHash hash;
  for (const FileFacts& file : files) {
    hash.Add(file.name);
    hash.Add(absl::StrCat(file.bytes, " ", file.header_hash));
    for (const auto& [offset, page] : file.pages) {
      hash.Add(absl::StrCat(offset, " ", page));
    }
    for (const auto& [name, tensor] : file.tensors) {
      hash.Add(absl::StrCat(name, " ", tensor));
    }
  }
  return hash.Hex();
}

std::string Checkpoint::FileState() const {
  PartsHash hash;
  for (const CheckpointContents::File& file : impl_->contents.files) {
    hash.Add(file.name);
    hash.Add(absl::StrCat(file.size, " ", file.modified_ns));
  }
  return hash.Hex();
}

}  // namespace ringfleet::cluster
