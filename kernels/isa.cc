// SPDX-License-Identifier: Apache-2.0
#include "kernels/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "hwy/highway.h"
#include "kernels/check.h"

namespace ringfleet::kernels {
namespace {

constexpr absl::string_view kNames[] = {
    "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"};

struct CpuidRegisters {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

CpuidRegisters Cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  CpuidRegisters r = {.a = leaf, .c = subleaf};
  __asm__("cpuid" : "+a"(r.a), "=b"(r.b), "+c"(r.c), "=d"(r.d));
  return r;
}

// The compiler's runtime asks CPUID and, through XGETBV, whether the system
// saves the registers. Its list lacks AVX-VNNI: leaf 7, subleaf 1, EAX bit 4.
bool HasAvxVnni() { return (Cpuid(7, 1).a & (1u << 4)) != 0; }

// AMX-BF16, AMX-TILE and AMX-INT8: leaf 7, EDX bits 22, 24 and 25. The system
// saves the registers of processes that asked for it, which all of their
// threads may then use (Linux: Documentation/arch/x86/xstate.rst).
bool HasAmx() {
  constexpr uint32_t kBits = 1u << 22 | 1u << 24 | 1u << 25;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool has =
      (Cpuid(7).d & kBits) == kBits &&
      syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return has;
}

bool Supports(Isa isa) {
  switch (isa) {
    case Isa::kSse4:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvxVnni:
      return Supports(Isa::kAvx2) && HasAvxVnni();
    case Isa::kAvx512:
      return Supports(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::kAvx512Vnni:
      return Supports(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512Bf16:
      return Supports(Isa::kAvx512Vnni) && __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx:
      return Supports(Isa::kAvx512Bf16) && HasAmx();
  }
  return false;
}

std::atomic<Isa>& Current() {
  static std::atomic<Isa> current{SupportedIsas().back()};
  return current;
}

// Leaf 1, EAX: the base family in bits 8 to 11 and, where these are all set,
// what bits 20 to 27 add to it.
uint32_t Family() {
  const uint32_t eax = Cpuid(1).a;
  const uint32_t base = eax >> 8 & 0xF;
  return base == 0xF ? base + (eax >> 20 & 0xFF) : base;
}

LinesAhead MeasuredLinesAhead() {
  constexpr uint32_t kZen5 = 0x1A;
  if (__builtin_cpu_is("intel")) return LinesAhead::kIntoLevel2;
  if (__builtin_cpu_is("amd") && Family() >= kZen5) {
    return LinesAhead::kIntoLevel1;
  }
  return LinesAhead::kForeseen;
}

// Targets of Highway's, as bits, that `isa` includes.
int64_t HighwayTargets(Isa isa) {
  int64_t targets = HWY_SSE4 | HWY_SSSE3;
  if (isa >= Isa::kAvx2) targets |= HWY_AVX2;
  if (isa >= Isa::kAvx512) targets |= HWY_AVX3;
  if (isa >= Isa::kAvx512Vnni) targets |= HWY_AVX3_DL;
  return targets;
}

}  // namespace

absl::string_view IsaName(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

absl::StatusOr<Isa> ParseIsa(absl::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Isa>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "instruction set ", name, ", want one of ", absl::StrJoin(kNames, ", ")));
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (Supports(static_cast<Isa>(i))) isas.push_back(static_cast<Isa>(i));
  }
  return isas;
}

Isa CurrentIsa() { return Current().load(std::memory_order_relaxed); }

LinesAhead BestLinesAhead() {
  static const LinesAhead best = MeasuredLinesAhead();
  return best;
}

size_t BytesAheadOutOfOrder(size_t rows) {
  if (BestLinesAhead() != LinesAhead::kForeseen) return 8192;
  return rows == 1 ? 2048 : 4096;
}

void ForceIsa(Isa isa) {
  RF_CHECK(Supports(isa));
  Current().store(isa, std::memory_order_relaxed);
  hwy::SetSupportedTargetsForTest(0);  // Back to what CPUID says.
  const int64_t targets = hwy::SupportedTargets() & HighwayTargets(isa);
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace ringfleet::kernels
