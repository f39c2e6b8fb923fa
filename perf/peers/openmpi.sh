#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Times Open MPI's collectives between processes of this machine; see
# mpi_collectives.cc for what is printed.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/peers/openmpi.sh [--transport tcp|shm] [--world N] [--op LIST]
                             [--bytes LIST] [--iterations N] [--no-barrier]

  --transport   tcp: sockets over loopback [default]; shm: shared memory
  --world       processes [2]; beyond the number of cores they yield when idle
  --op          of all_reduce, all_gather, reduce_scatter, all_to_all,
                broadcast, barrier [all]
  --bytes       of the whole float32 vector [4,14336,28672,1835008,7340032]
  --iterations  timed ones of every size [1000 to 64 KiB, 100 above]
  --no-barrier  iterations follow each other at once
USAGE
}

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/perf/options.sh"
transport=tcp
world=2 op= bytes= iterations= no_barrier=
take_options "transport world op bytes iterations" "no-barrier" "$@"
arguments=()
[[ -z $op ]] || arguments+=(--op "$op")
[[ -z $bytes ]] || arguments+=(--bytes "$bytes")
[[ -z $iterations ]] || arguments+=(--iterations "$iterations")
[[ -z $no_barrier ]] || arguments+=(--no-barrier)

# The message layer is named too, or UCX would choose the transport itself.
mpi=(--mca pml ob1)
case "$transport" in
  tcp) mpi+=(--mca btl "self,tcp" --mca btl_tcp_if_include lo) ;;
  shm) mpi+=(--mca btl "self,vader") ;;
  *)
    usage >&2
    exit 2
    ;;
esac
if ((world > $(nproc))); then
  mpi+=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
fi
if ((EUID == 0)); then mpi+=(--allow-run-as-root); fi

"$root/perf/peers/install_openmpi.sh" >&2
program=$root/build/peers/mpi_collectives
mkdir -p "${program%/*}"
for source in "$root/perf/peers/mpi_collectives.cc" \
  "$root/perf/iteration_times.h"; do
  if [[ ! $program -nt $source ]]; then
    mpicxx -std=c++20 -O2 -Wall -Wextra -DOMPI_SKIP_MPICXX -I "$root" \
      "$root/perf/peers/mpi_collectives.cc" -o "$program"
    break
  fi
done
exec mpirun "${mpi[@]}" -np "$world" "$program" --transport "$transport" \
  "${arguments[@]}"
