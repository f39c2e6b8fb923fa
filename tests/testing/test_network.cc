// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/test_network.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

namespace ringfleet::testing {
namespace {

constexpr char kNamespaces[] = "/run/netns";
constexpr char kPrefix[] = "ringfleet";

// Runs a script of sh that stops at its first failure. Returns what it printed
// if it failed.
absl::Status RunScript(const std::string& script) {
  const std::string command =
      "exec 2>&1; set -eu; PATH=$PATH:/usr/sbin:/sbin\n" + script;
  FILE* const pipe = popen(command.c_str(), "re");
  RF_CHECK(pipe != nullptr);
  std::string output;
  char buffer[4096];
  while (size_t size = fread(buffer, 1, sizeof(buffer), pipe)) {
    output.append(buffer, size);
  }
  const int status = pclose(pipe);
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(output, "in:\n", script));
}

void MustRun(const std::string& script) {
  const absl::Status status = RunScript(script);
  if (status.ok()) return;
  std::fprintf(stderr, "test network: %s\n",
               std::string(status.message()).c_str());
  std::abort();
}

// Start of a process in clock ticks after boot, field 22 of its stat; "" when
// it has gone. With the id it names one process for ever.
std::string StartTime(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream rest(stat.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return field;
}

std::vector<std::string> Namespaces() {
  std::vector<std::string> names;
  DIR* const folder = opendir(kNamespaces);
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) {
    names.push_back(entry->d_name);
  }
  closedir(folder);
  return names;
}

std::string Deletion(const std::vector<std::string>& names) {
  std::string script;
  for (const std::string& name : names) {
    absl::StrAppend(&script, "ip netns del ", name, "\n");
  }
  return script;
}

// ringfleet.PID.START.NUMBER.HOST of processes that have gone.
std::vector<std::string> Leftovers() {
  std::vector<std::string> found;
  for (const std::string& name : Namespaces()) {
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    if (parts.size() == 5 && parts[0] == kPrefix &&
        StartTime(parts[1]) != parts[2]) {
      found.push_back(name);
    }
  }
  return found;
}

std::string NewPrefix(int number) {
  const std::string pid = std::to_string(getpid());
  return absl::StrCat(kPrefix, ".", pid, ".", StartTime(pid), ".", number, ".");
}

// Limits what leaves through a device.
std::string Shaping(const std::string& in, const std::string& device,
                    const TestNetworkOptions& options) {
  const double bytes_per_second = options.gbit_per_second * 1e9 / 8;
  if (bytes_per_second <= 0) return "";
  int64_t burst = options.burst_bytes;
  if (burst <= 0) {
    burst = std::max<int64_t>(4096, bytes_per_second * 128e-6);
  }
  // TCP makes packets of many segments, as for a network card that divides
  // them. Those above the burst tbf would cut up itself, at a great cost.
  const int64_t packet = std::clamp<int64_t>(burst / 2, 2048, 65536);
  // What a switch would buffer before it drops; some packets at least, since a
  // host that loses one in its own queue waits 200 ms before it sends on.
  const int64_t queue = std::max<int64_t>(
      {128 << 10, 16 * packet, static_cast<int64_t>(bytes_per_second * 10e-3)});
  return absl::StrCat("ip -n ", in, " link set dev ", device, " gso_max_size ",
                      packet, "\n", "tc -n ", in, " qdisc replace dev ", device,
                      " root tbf rate ",
                      static_cast<int64_t>(bytes_per_second * 8), "bit burst ",
                      burst, "b limit ", queue, "b\n");
}

// Packets that arrive are lost or answered with a reset when their source is in
// a set; the tests change the sets.
constexpr char kRules[] = R"(
table ip ringfleet {
  set dropped { type ipv4_addr; }
  set refused { type ipv4_addr; }
  chain arriving {
    type filter hook input priority filter; policy accept;
    ip saddr @dropped drop
    ip saddr @refused ip protocol tcp reject with tcp reset
  }
}
)";

std::string AddressOf(int number, int host) {
  return absl::StrCat("10.", number % 250 + 1, ".0.", host + 1);
}

std::string CreationOf(const TestNetworkOptions& options, int number,
                       const std::string& prefix) {
  const std::string at = prefix + "switch";
  std::string script = absl::StrCat("ip netns add ", at, "\n", "ip -n ", at,
                                    " link add br0 type bridge\n", "ip -n ", at,
                                    " link set br0 up\n");
  for (int host = 0; host < options.hosts; ++host) {
    const std::string name = absl::StrCat(prefix, host);
    const std::string port = absl::StrCat("p", host);
    absl::StrAppend(&script, "ip netns add ", name, "\n", "ip -n ", at,
                    " link add ", port, " type veth peer name eth0 netns ",
                    name, "\n", Shaping(name, "eth0", options),
                    Shaping(at, port, options), "ip -n ", at, " link set ",
                    port, " master br0 up\n", "ip -n ", name,
                    " link set lo up\n", "ip -n ", name, " addr add ",
                    AddressOf(number, host), "/24 dev eth0\n", "ip -n ", name,
                    " link set eth0 up\n", "ip netns exec ", name,
                    " nft -f - <<'END'", kRules, "END\n");
  }
  return script;
}

std::vector<std::string> NamesOf(const std::string& prefix) {
  std::vector<std::string> names = Namespaces();
  std::erase_if(names, [&](const std::string& name) {
    return name.compare(0, prefix.size(), prefix) != 0;
  });
  return names;
}

int next_number = 0;

}  // namespace

absl::Status TestNetwork::Available() {
  static const absl::Status status = [] {
    if (geteuid() != 0) {
      return absl::PermissionDeniedError("network namespaces need root");
    }
    for (const char* tool : {"ip", "tc", "nft", "nsenter"}) {
      if (!RunScript(absl::StrCat("command -v ", tool)).ok()) {
        return absl::NotFoundError(absl::StrCat(
            tool, " is missing: packages iproute2, nftables, util-linux"));
      }
    }
    const std::string prefix = NewPrefix(next_number++);
    const std::string name = prefix + "0";
    const std::pair<const char*, std::string> steps[] = {
        {"network namespace", "ip netns add " + name},
        {"bridge", absl::StrCat("ip -n ", name, " link add br0 type bridge")},
        {"veth",
         absl::StrCat("ip -n ", name, " link add p0 type veth peer name eth0")},
        {"tbf", absl::StrCat("tc -n ", name,
                             " qdisc add dev p0 root tbf rate 1gbit "
                             "burst 16kb limit 1mb")},
        {"nftables",
         absl::StrCat("ip netns exec ", name, " nft add table ip ringfleet")},
        {"setns",
         absl::StrCat("nsenter --net=", kNamespaces, "/", name, " true")}};
    absl::Status made;
    for (const auto& [what, script] : steps) {
      if (made = RunScript(script); made.ok()) continue;
      const std::vector<std::string> lines =
          absl::StrSplit(made.message(), '\n');
      made = absl::UnimplementedError(absl::StrCat(what, ": ", lines[0]));
      break;
    }
    MustRun(Deletion(NamesOf(prefix)));
    return made;
  }();
  return status;
}

TestNetwork::TestNetwork(TestNetworkOptions options)
    : options_(options), number_(next_number++), prefix_(NewPrefix(number_)) {
  RF_CHECK(options_.hosts >= 1 && options_.hosts <= 250);
  // Another test may remove them at the same time.
  for (const std::string& name : Leftovers()) {
    MustRun(absl::StrCat("ip netns del ", name, " || true\n"));
  }
  MustRun(CreationOf(options_, number_, prefix_));
}

TestNetwork::~TestNetwork() { MustRun(Deletion(NamesOf(prefix_))); }

std::string TestNetwork::Address(int host) const {
  RF_CHECK(host >= 0 && host < hosts());
  return AddressOf(number_, host);
}

std::string TestNetwork::Namespace(int host) const {
  RF_CHECK(host >= 0 && host < hosts());
  return absl::StrCat(prefix_, host);
}

std::vector<std::string> TestNetwork::Command(
    int host, std::vector<std::string> command) const {
  std::vector<std::string> all = {
      "/usr/bin/nsenter",
      absl::StrCat("--net=", kNamespaces, "/", Namespace(host)), "--"};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

void TestNetwork::OnHost(int host, const std::function<void()>& body) const {
  const std::string path = absl::StrCat(kNamespaces, "/", Namespace(host));
  std::thread thread([&] {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    RF_CHECK(fd >= 0);
    RF_CHECK(setns(fd, CLONE_NEWNET) == 0);
    close(fd);
    body();
  });
  thread.join();
}

void TestNetwork::ChangeSet(int host, int other, const std::string& change,
                            const std::string& set) {
  MustRun(absl::StrCat("ip netns exec ", Namespace(host), " nft ", change,
                       " element ip ringfleet ", set, " '{ ", Address(other),
                       " }'\n"));
}

void TestNetwork::DropFrom(int host, int other) {
  ChangeSet(host, other, "add", "dropped");
}

void TestNetwork::ResetFrom(int host, int other) {
  ChangeSet(host, other, "add", "refused");
}

void TestNetwork::Partition(int host, int other) {
  DropFrom(host, other);
  DropFrom(other, host);
}

void TestNetwork::Heal(int host, int other) {
  for (const char* set : {"dropped", "refused"}) {
    ChangeSet(host, other, "add", set);  // Only what is there can be deleted.
    ChangeSet(host, other, "delete", set);
  }
}

void TestNetwork::HealAll() {
  for (int host = 0; host < hosts(); ++host) {
    MustRun(absl::StrCat("ip netns exec ", Namespace(host),
                         " nft 'flush set ip ringfleet dropped; "
                         "flush set ip ringfleet refused'\n"));
  }
}

void TestNetwork::LinkDown(int host) {
  MustRun(
      absl::StrCat("ip -n ", prefix_, "switch link set p", host, " down\n"));
}

void TestNetwork::LinkUp(int host) {
  MustRun(absl::StrCat("ip -n ", prefix_, "switch link set p", host, " up\n"));
}

}  // namespace ringfleet::testing
