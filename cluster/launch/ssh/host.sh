# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The half of fleet.sh that runs on a host. It arrives on the standard input of
# `bash -s -- VERB ...`, so nothing needs to be installed there; what follows
# its last line on that input is the verb's data.
#
#   start   FLEET LABEL ORIGIN LOG_DIR PROGRAM [ARGUMENT...]
#   stop    FLEET LABEL ORIGIN GRACE_SECONDS
#   restart FLEET LABEL ORIGIN GRACE_SECONDS LOG_DIR PROGRAM [ARGUMENT...]
#   status  FLEET LABEL ORIGIN
#   logs    FLEET LABEL LOG_DIR SECONDS|- yes|no        -: all; yes: follow
#   run     SECONDS COMMAND
#   check   FLEET MODEL|- STATE_DIR|- [HOST PORT]...
#   copy    file|folder NAME MODE DESTINATION           data: bytes or a tar
#
# The data of a coordinator's start and restart is its cluster.yaml.
#
# A process is recorded in LABEL.pid of the fleet's state folder as
# "PID START BOOT ORIGIN": its id, its start in clock ticks since boot, the boot,
# and "CHECKSUM PATH" of the cluster file. Only a live process that matches the
# first three is ever signalled. Fleets of two files may have one name: a process
# is kept or stopped for a file with its path or its checksum. A path of "-" is
# any.
#
# `A && B || fail` is meant: fail when either does. The log is an argument and
# the output of one command on purpose.
# shellcheck disable=SC2015,SC2094
set -uo pipefail

fail() {
  echo "$*"
  exit 1
}

find_state_folder() {  # FLEET
  state_dir=${XDG_STATE_HOME:-${HOME:?is not set}/.local/state}/ringfleet/$1
}

enter_state_folder() {  # FLEET LABEL
  find_state_folder "$1"
  pid_file=$state_dir/$2.pid
  mkdir -p "$state_dir" && cd "$state_dir" ||
    fail "cannot create the state folder $state_dir"
  # Two callers at once take turns.
  exec 9>>"$2.lock"
  flock -w 20 9 || fail "another start or stop holds $state_dir/$2.lock"
}

# Prints when process $1 started; fails when it is gone or a zombie.
start_time() {
  local stat fields
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  # The name, in parentheses, may hold anything; the state follows it.
  read -ra fields <<<"${stat##*) }"
  [[ ${fields[0]} != [ZX] ]] && echo "${fields[19]}"
}

boot_id() {
  cat /proc/sys/kernel/random/boot_id
}

# Prints the id of the recorded process if that very process is alive.
recorded_pid() {
  local pid start boot origin
  read -r pid start boot origin 2>/dev/null <"$pid_file" || return 1
  [[ $pid =~ ^[0-9]+$ && $boot == "$(boot_id)" ]] || return 1
  [[ $(start_time "$pid") == "$start" ]] && echo "$pid"
}

# Says why the recorded process is gone.
why_gone() {
  local pid start boot
  read -r pid start boot _ 2>/dev/null <"$pid_file"
  if [[ ! $pid =~ ^[0-9]+$ || -z $boot ]]; then
    echo "stale pid file"
  elif [[ $boot == "$(boot_id)" ]]; then
    echo "pid $pid has ended by itself: killed, or crashed"
  else
    echo "pid $pid ended when the host restarted"
  fi
}

# Prints the path of the cluster file that the recorded process was started from;
# fails if it is that of ORIGIN.
other_file() {  # ORIGIN
  local pid start boot sum path
  read -r pid start boot sum path <"$pid_file" || return 1
  [[ -n $path && $path != - && ${1#* } != - ]] || return 1
  [[ $path != "${1#* }" && $sum != "${1%% *}" ]] && echo "$path"
}

refuse_other_file() {  # PID ORIGIN
  local path
  ! path=$(other_file "$2") || fail "refused: pid $1, which was started from $path"
}

# Writes the coordinator's file, unless it is there already: what runs may be
# asked to start on a full disk.
write_cluster_file() {  # TEXT
  [[ $1 != "$(cat cluster.yaml 2>/dev/null)" ]] || return 0
  printf '%s\n' "$1" >"cluster.yaml.$$" && mv "cluster.yaml.$$" cluster.yaml || {
    rm -f "cluster.yaml.$$"
    fail "cannot write $state_dir/cluster.yaml"
  }
}

start() {  # LABEL ORIGIN LOG_DIR PROGRAM [ARGUMENT...]
  local label=$1 origin=$2 log_dir=$3 file pid begun gate tries
  shift 3
  # Its writer must not find that nobody reads.
  file=$(cat)
  if pid=$(recorded_pid); then
    refuse_other_file "$pid" "$origin"
    echo "already running pid $pid"
    return
  fi
  if [[ $label == coordinator ]]; then
    write_cluster_file "$file"
    set -- "$@" --cluster "$state_dir/cluster.yaml"
  fi
  [[ ! -e $pid_file ]] || why_gone
  rm -f "$pid_file"
  [[ -x $1 ]] || fail "no program $1 on this host, want the folder of the \
binaries (--bin-dir)"
  [[ $log_dir != - ]] || log_dir=$state_dir
  local log=$log_dir/$label.log port_file=$state_dir/$label.port
  rm -f "$port_file"
  mkdir -p "$log_dir" && : >>"$log" || fail "cannot write the log $log"
  local earlier
  earlier=$(stat -L -c %s "$log") || exit 1
  # Its own session, no terminal, and no descriptor of its caller: one left
  # open would keep a pipe or a lock of the caller's alive. It leaves its
  # caller's process group, which an interrupt ends as a whole, only once it is
  # recorded: nobody would find it otherwise.
  exec {gate}> >(
    read -r || exit
    for fd in "/proc/$BASHPID/fd/"*; do
      ((${fd##*/} <= 2)) || eval "exec ${fd##*/}>&-"
    done
    exec setsid nohup "$@" --log-file "$log" \
      --port-file "$port_file" </dev/null >>"$log" 2>&1
  )
  pid=$!
  begun=$(start_time "$pid") &&
    echo "$pid $begun $(boot_id) $origin" >"$pid_file.new" &&
    mv "$pid_file.new" "$pid_file" || fail "cannot record pid $pid in $pid_file"
  echo go >&"$gate"
  exec {gate}>&-
  # What cannot start (a port in use, a wrong flag) ends before it listens.
  for ((tries = 0; tries < 100; ++tries)); do
    if ! start_time "$pid" >/dev/null; then
      wait "$pid"
      local code=$?
      rm -f "$pid_file"
      echo "ended at once with exit code $code; the end of $log:"
      tail -c "+$((earlier + 1))" "$log" | tail -n 5
      exit 1
    fi
    if [[ -s $port_file ]]; then
      echo "started pid $pid"
      return
    fi
    sleep 0.1
  done
  echo "started pid $pid, which does not listen yet; see $log"
}

stop() {  # ORIGIN GRACE_SECONDS
  local origin=$1 grace=$2 pid tries signal=TERM
  if ! pid=$(recorded_pid); then
    if [[ -e $pid_file ]]; then
      echo "not running ($(why_gone))"
      rm -f "$pid_file"
    else
      echo "not running"
    fi
    return
  fi
  refuse_other_file "$pid" "$origin"
  kill -TERM "$pid"
  for ((tries = 0; tries < grace * 10; ++tries)); do
    recorded_pid >/dev/null || break
    sleep 0.1
  done
  if recorded_pid >/dev/null; then
    signal=KILL
    kill -KILL "$pid"
    for ((tries = 0; tries < 50; ++tries)); do
      recorded_pid >/dev/null || break
      sleep 0.1
    done
  fi
  ! recorded_pid >/dev/null || fail "pid $pid survives SIGKILL"
  rm -f "$pid_file"
  if [[ $signal == KILL ]]; then
    echo "killed pid $pid after $grace s without an end"
  else
    echo "stopped pid $pid"
  fi
}

status() {  # ORIGIN
  local pid path
  if pid=$(recorded_pid); then
    ! path=$(other_file "$1") || path=", which was started from $path"
    echo "running pid $pid$path"
  elif [[ -e $pid_file ]]; then
    echo "not running ($(why_gone))"
  else
    echo "not running"
  fi
}

# Keeps the lines of the last $1 seconds. A line without a time belongs to the one
# before it.
lines_since() {  # SECONDS|-
  if [[ $1 == - ]]; then
    cat
    return
  fi
  awk -v from="$(date -u -d "@$(($(date +%s) - $1))" +%Y-%m-%dT%H:%M:%S)" '
    /^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T/ { keep = $1 >= from }
    keep'
}

# Prints a log and the full one before it. What follows is not filtered: `tail`
# alone notices that its reader has gone.
logs() {  # LABEL LOG_DIR SECONDS|- yes|no
  local log_dir=$2 size
  [[ $log_dir != - ]] || log_dir=$state_dir
  local log=$log_dir/$1.log
  size=$(stat -L -c %s "$log" 2>/dev/null) || fail "no log $log"
  { cat "$log.1" 2>/dev/null; head -c "$size" "$log"; } | lines_since "$3"
  [[ $4 == no ]] || exec tail -c "+$((size + 1))" -F "$log" 2>/dev/null
}

# Succeeds if somebody listens on a port that a process of this host wants.
is_in_use() {  # HOST PORT
  case $1 in
    0 | 0.0.0.0 | :: | ::ffff:0.0.0.0) ;;
    *)
      # shellcheck disable=SC2016
      timeout 2 bash -c ': <>"/dev/tcp/$0/$1"' "$1" "$2" 2>/dev/null
      case $? in
        0) return 0 ;;
        124) ;;  # A listener that has too many callers answers none.
        *) return 1 ;;
      esac
      ;;
  esac
  awk -v port="$(printf ':%04X$' "$2")" '
    $4 == "0A" && $2 ~ port { found = 1 }
    END { exit !found }' <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)
}

has_weights() {  # MODEL
  local file
  for file in "$1"/*.safetensors; do [[ ! -e $file ]] || return 0; done
  return 1
}

# Says what keeps a coordinator from starting here, and how much space the folder
# of its state has, or will have.
check() {  # MODEL|- STATE_DIR|- [HOST PORT]...
  local model=$1 folder=$2 existing blocks size
  shift 2
  [[ $folder != - ]] || folder=$state_dir
  existing=$folder
  while [[ $existing == */* && ! -e $existing ]]; do existing=${existing%/*}; done
  ! read -r blocks size < <(stat -f -c '%a %S' -- "${existing:-/}") ||
    echo "$((blocks * size)) bytes free in $folder"
  if [[ $model != - ]]; then
    [[ -e $model/config.json ]] || echo "no config.json in $model"
    has_weights "$model" || echo "no weights in $model"
  fi
  while (($# >= 2)); do
    ! is_in_use "$1" "$2" || echo "port $2 on $1 is in use"
    shift 2
  done
}

copy() {  # file|folder NAME MODE DESTINATION
  local kind=$1 name=$2 mode=$3 to=$4
  [[ $to != -* ]] || to=./$to
  # As cp does: into a folder, or under the name given.
  if [[ $to == */ || -d $to ]]; then to=${to%/}/$name; fi
  if [[ $kind == folder ]]; then
    mkdir -p "$to" && tar -xf - -C "$to" || fail "cannot write $to"
  else
    # Whole or not at all: a running program must never see half a file.
    local partial=$to.partial.$$
    mkdir -p "$(dirname "$to")" && cat >"$partial" &&
      chmod "$mode" "$partial" && mv "$partial" "$to" || {
      rm -f "$partial"
      fail "cannot write $to"
    }
  fi
  echo "copied to $to"
}

# Bounded here too: a host that loses its caller must not work on for ever.
# Ends behind the command, also when a signal asks for an end; who ignores that
# is killed before the caller loses its patience (5 s).
run() {  # SECONDS COMMAND
  local child='' asked='' code
  # Before there is a child: the signal may come as early as its first output.
  trap 'asked=yes; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null' INT TERM
  timeout --kill-after=3 "$1" bash -c "$2" </dev/null &
  child=$!
  [[ -z $asked ]] || kill -TERM "$child" 2>/dev/null
  # A signal ends the wait, not the command.
  while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done
  return "$code"
}

main() {
  local verb=$1
  shift
  case $verb in
    run) run "$@" ;;
    check)
      find_state_folder "$1"
      check "${@:2}"
      ;;
    copy) copy "$@" ;;
    start)
      enter_state_folder "$1" "$2"
      start "${@:2}"
      ;;
    stop)
      enter_state_folder "$1" "$2"
      stop "$3" "$4"
      ;;
    restart)
      enter_state_folder "$1" "$2"
      stop "$3" "$4"
      start "$2" "$3" "${@:5}"
      ;;
    status)
      enter_state_folder "$1" "$2"
      status "$3"
      ;;
    logs)
      find_state_folder "$1"
      logs "${@:2}"
      ;;
    *) fail "unknown verb $verb" ;;
  esac
}

main "$@"; exit $?
