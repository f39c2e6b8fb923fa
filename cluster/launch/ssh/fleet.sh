#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts, stops and inspects the processes of a fleet on the hosts of its
# cluster.yaml, over ssh, all hosts at once. See --help.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'END'
usage: fleet.sh VERB --cluster FILE [options] [arguments]

  start               start what is not running; a running process is kept
  stop                end by recorded pid: SIGTERM, then SIGKILL after the grace
  restart             stop, then start
  status              running or not, and the pid
  logs                print the logs, one host after the other; --follow prints
                      what is added, too, until it is ended
  run COMMAND...      run a shell command, once on each host
  check MODEL STATE [HOST PORT]...
                      say which ports are in use on each host, and whether the
                      folder MODEL is there; "-": no model. Say how much space
                      the folder STATE has; "-": the fleet's state folder
  copy FILE DEST      copy a file or a folder, once to each host; DEST is a
                      name, or a folder when it ends in / or is one

  --cluster FILE      the fleet; required, unless --targets is given
  --hosts RANGE       ranks, both ends included ("0-3", "2"), or "coordinator";
                      default: every worker and the coordinator
  --targets FILE      a file that `ringfleet targets` wrote, instead of --cluster
                      and --hosts; - is standard input
  --bin-dir DIR       folder of ringfleet-worker and ringfleet-coordinator on
                      the hosts; default: that of this machine's ringfleet
  --timeout SECONDS   longest wait for one host (60; run and copy: 3600)
  --grace SECONDS     between SIGTERM and SIGKILL (10)
  --since SECONDS     logs: only lines of that time
  --follow            logs: go on with new lines, of all hosts at once

Each line of output begins with [rank host]. Exit codes: 0 every host did it,
1 some hosts failed (the last line names them), 2 wrong call or cluster file. A
fleet without an ssh section whose hosts are all loopback names runs on this
machine without ssh.

Environment: RINGFLEET_CLI (the ringfleet binary, not asked with --targets),
RINGFLEET_BIN_DIR (as --bin-dir), RINGFLEET_SSH_OPTIONS (more arguments of ssh,
split at blanks).

  fleet.sh start --cluster cluster.yaml
  fleet.sh run --cluster cluster.yaml --hosts 0-1 'nproc; free -g'
  fleet.sh copy --cluster cluster.yaml build/bin/ringfleet-worker /opt/ringfleet/
END
}

wrong_call() {
  echo "fleet.sh: $* (see fleet.sh --help)" >&2
  exit 2
}

parse_arguments() {
  case ${1:-} in
    -h | --help)
      usage
      exit 0
      ;;
    start | stop | restart | status | logs | run | check | copy) verb=$1 ;;
    '') wrong_call "give a verb: start, stop, restart, status, logs, run, check \
or copy" ;;
    *) wrong_call "unknown verb '$1', want start, stop, restart, status, logs, run, \
check or copy" ;;
  esac
  shift
  cluster='' hosts='' targets='' limit='' grace=10 since=- follow=no bin_dir=${RINGFLEET_BIN_DIR:-}
  while (($# > 0)); do
    case $1 in
      -h | --help)
        usage
        exit 0
        ;;
      --)
        shift
        break
        ;;
      --follow)
        follow=yes
        shift
        ;;
      --cluster | --hosts | --targets | --bin-dir | --timeout | --grace | --since)
        (($# >= 2)) || wrong_call "$1 needs a value"
        case $1 in
          --cluster) cluster=$2 ;;
          --hosts) hosts=$2 ;;
          --targets) targets=$2 ;;
          --bin-dir) bin_dir=$2 ;;
          --timeout) limit=$2 ;;
          --grace) grace=$2 ;;
          --since) since=$2 ;;
        esac
        shift 2
        ;;
      -*) wrong_call "unknown option '$1'" ;;
      *) break ;;
    esac
  done
  arguments=("$@")

  if [[ -n $targets ]]; then
    [[ -z $cluster$hosts ]] ||
      wrong_call "--targets replaces --cluster and --hosts; give one or the other"
  elif [[ -z $cluster ]]; then
    wrong_call "give a fleet: --cluster FILE"
  fi
  if [[ -z $limit ]]; then
    case $verb in run | copy | logs) limit=3600 ;; *) limit=60 ;; esac
    [[ $follow == no ]] || limit=999999
  fi
  [[ $limit =~ ^[1-9][0-9]{0,5}$ ]] ||
    wrong_call "--timeout '$limit', want seconds from 1 to 999999"
  [[ $grace =~ ^[0-9]{1,4}$ ]] ||
    wrong_call "--grace '$grace', want seconds from 0 to 9999"
  [[ $since == - || $since =~ ^[0-9]{1,9}$ ]] ||
    wrong_call "--since '$since', want seconds from 0 to 999999999"
  [[ $verb == logs || $since$follow == -no ]] ||
    wrong_call "$verb takes neither --since nor --follow"
  case $verb in
    run) ((${#arguments[@]} >= 1)) || wrong_call "run: no command" ;;
    check)
      ((${#arguments[@]} >= 2 && ${#arguments[@]} % 2 == 0)) ||
        wrong_call "check: want MODEL STATE [HOST PORT]..."
      ;;
    copy)
      ((${#arguments[@]} == 2)) || wrong_call "copy: want FILE DEST"
      [[ -r ${arguments[0]} ]] ||
        wrong_call "copy: '${arguments[0]}' is not a readable file or folder"
      ;;
    *)
      ((${#arguments[@]} == 0)) ||
        wrong_call "$verb takes no argument, got '${arguments[0]}'"
      ;;
  esac
}

# Sets `cli` to the ringfleet binary: of the build tree, beside an installed
# script, or in PATH.
find_cli() {
  cli=${RINGFLEET_CLI:-}
  local found
  for found in "$here"/../../../{build/,../}bin/ringfleet; do
    [[ -n $cli || ! -x $found ]] || cli=$found
  done
  [[ -n $cli ]] || cli=$(command -v ringfleet) ||
    wrong_call "no ringfleet binary; build it or set RINGFLEET_CLI"
  cli=$(realpath "$cli")
}

# Fills the arrays below, one element a target, `resolved`, the text of the
# resolved cluster file, and `origin`, its checksum and the file's path, from the
# lines of `ringfleet targets`.
read_targets() {
  local lines line rest path=- a b c d e f g
  labels=() dests=() names=() listens=() threads=() numas=() memories=()
  ssh_options=() resolved=''
  if [[ -n $targets ]]; then
    lines=$(cat -- "$targets") || exit 2
  else
    lines=$("$cli" targets --cluster "$cluster" ${hosts:+--hosts "$hosts"}) ||
      exit 2
  fi
  while IFS= read -r line; do
    rest=${line#*$'\t'}
    case ${line%%$'\t'*} in
      fleet) fleet=$rest ;;
      path) path=$rest ;;
      log_dir) log_dir=$rest ;;
      insecure) insecure=$rest ;;
      coordinator) coordinator=$rest ;;
      ssh_option) ssh_options+=("$rest") ;;
      target)
        IFS=$'\t' read -r a b c d e f g <<<"$rest"
        labels+=("$a") dests+=("$b") names+=("$c") listens+=("$d")
        threads+=("$e") numas+=("$f") memories+=("$g")
        ;;
      file) resolved+=$rest$'\n' ;;
    esac
  done <<<"$lines"
  origin=$(printf '%s' "$resolved" | cksum)
  origin="${origin/ /:} $path"
  ((${#labels[@]} > 0)) ||
    wrong_call "no targets from ${targets:-"$cli"}, want the output of ringfleet targets"
}

# Sets `command` to the command line of target $1. Its host adds the log, the port
# file.
compose_command() {
  local i=$1
  if [[ ${labels[i]} == coordinator ]]; then
    command=("$bin_dir/ringfleet-coordinator")
    return
  fi
  command=("$bin_dir/ringfleet-worker" --rank "${labels[i]}"
    --listen "${listens[i]}" --advertise "${listens[i]}"
    --coordinator "$coordinator" --threads "${threads[i]}")
  [[ ${numas[i]} == - ]] || command+=(--numa-node "${numas[i]}")
  [[ ${memories[i]} == - ]] || command+=(--memory-gib "${memories[i]}")
  [[ $insecure == no ]] || command+=(--insecure)
}

# Quotes the arguments for any POSIX shell.
quote() {
  local argument
  for argument in "$@"; do
    printf " '%s'" "${argument//\'/\'\\\'\'}"
  done
}

# Runs host.sh with the arguments after the destination; data on standard
# input follows the script.
reach() {
  local dest=$1
  shift
  if [[ $dest == local ]]; then
    cat "$here/host.sh" - |
      timeout --foreground --kill-after=5 "$limit" bash -s -- "$@"
    return
  fi
  # The first value of an ssh option wins, so the fleet's come first.
  local extra
  read -ra extra <<<"${RINGFLEET_SSH_OPTIONS:-}"
  cat "$here/host.sh" - |
    timeout --foreground --kill-after=5 "$limit" \
      ssh -T "${extra[@]}" "${ssh_options[@]}" \
      -o BatchMode=yes -o ConnectTimeout=10 \
      -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
      "$dest" "bash -s --$(quote "$@")"
}

# Does the verb on target $1.
work_on() {
  local i=$1 label command from name mode
  label=${labels[i]}
  [[ $label == coordinator ]] || label=rank-$label
  case $verb in
    start | restart)
      compose_command "$i"
      local before=()
      [[ $verb == start ]] || before=("$grace")
      { [[ $label != coordinator ]] || printf '%s' "$resolved"; } |
        reach "${dests[i]}" "$verb" "$fleet" "$label" "$origin" \
          "${before[@]}" "$log_dir" "${command[@]}"
      ;;
    stop)
      reach "${dests[i]}" stop "$fleet" "$label" "$origin" "$grace" </dev/null
      ;;
    status) reach "${dests[i]}" status "$fleet" "$label" "$origin" </dev/null ;;
    logs)
      reach "${dests[i]}" logs "$fleet" "$label" "$log_dir" "$since" "$follow" \
        </dev/null
      ;;
    run) reach "${dests[i]}" run "$limit" "${arguments[*]}" </dev/null ;;
    check) reach "${dests[i]}" check "$fleet" "${arguments[@]}" </dev/null ;;
    copy)
      from=${arguments[0]}
      if [[ -d $from ]]; then
        tar -cf - -C "$from" . | reach "${dests[i]}" copy folder \
          "$(basename "$from")" - "${arguments[1]}"
      else
        mode=$(stat -L -c %a "$from")
        name=$(basename "$from")
        reach "${dests[i]}" copy file "$name" "$mode" "${arguments[1]}" <"$from"
      fi
      ;;
  esac
}

# Puts $1 before each line. Outlives an interrupt: a writer that ends in order
# would otherwise die of a broken pipe.
label_lines() {
  trap '' INT TERM
  # A log that has an end goes in large pieces. `sed -u` would read single bytes.
  local by_line=(stdbuf -oL)
  [[ $verb != logs || $follow == yes ]] || by_line=()
  exec "${by_line[@]}" sed "s/^/$1/"
}

# A host that several targets share runs a command, is checked, or gets a copy,
# once.
keep_one_target_a_host() {
  local -A seen=()
  chosen=()
  local i
  for i in "${!labels[@]}"; do
    case $verb in
      run | check | copy) [[ -z ${seen[${dests[i]}]:-} ]] || continue ;;
    esac
    seen[${dests[i]}]=1
    chosen+=("$i")
  done
}

# Succeeds if a process of one of the groups lives. `kill -0` would also find dead
# processes that the system's first process has not buried yet.
any_lives() {  # GROUP...
  local stat fields
  for stat in /proc/[0-9]*/stat; do
    { read -r stat <"$stat"; } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"  # State, parent, group.
    [[ ${fields[0]} == [ZX] || " $* " != *" ${fields[2]} "* ]] || return 0
  done
  return 1
}

# Ends the processes of all jobs on this machine, then this script. `timeout` kills
# ssh and a host's part after 5 s; the jobs themselves are killed a second later.
interrupted() {  # EXIT_CODE
  local groups group tries
  trap '' INT TERM
  groups=("${jobs[@]}" ${!:+"$!"})  # The last one may not be in the list yet.
  for group in "${groups[@]}"; do kill -TERM -- "-$group" 2>/dev/null; done
  for ((tries = 0; tries < 60; ++tries)); do
    any_lives "${groups[@]}" || exit "$1"
    sleep 0.1
  done
  for group in "${groups[@]}"; do kill -KILL -- "-$group" 2>/dev/null; done
  wait
  exit "$1"
}

jobs=()
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
parse_arguments "$@"
[[ -n $targets && -n $bin_dir ]] || find_cli
bin_dir=${bin_dir:-$(dirname "$cli")}
read_targets
keep_one_target_a_host

# Waits for job $1 of target $2.
collect() {
  wait "$1" || failed+=("${labels[$2]} (${names[$2]})")
}

failed=()
in_turn=no
[[ $verb != logs || $follow == yes ]] || in_turn=yes
set -m  # A process group each, so that an interrupt reaches all of a job.
for i in "${chosen[@]}"; do
  {
    {
      work_on "$i"
      code=$?
      ((code != 124)) || echo "no end within $limit s"
      exit "$code"
    } 2>&1 </dev/null | label_lines "[${labels[i]} ${names[i]}] "
  } &
  jobs+=("$!")
  [[ $in_turn == no ]] || collect "$!" "$i"
done
set +m

if [[ $in_turn == no ]]; then
  for n in "${!jobs[@]}"; do collect "${jobs[n]}" "${chosen[n]}"; done
fi
if ((${#failed[@]} > 0)); then
  printf -v list ', %s' "${failed[@]}"
  echo "fleet.sh: $verb failed on ${list:2}" >&2
  exit 1
fi
