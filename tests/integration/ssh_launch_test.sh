#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# cluster/launch/ssh/fleet.sh against an sshd of its own on loopback, with
# stand-ins for the daemons. Usage: ssh_launch_test.sh FLEET_SH TARGETS_CLI
# Exit code 77 means skipped, with the reason.
set -uo pipefail
fleet_sh=$1
export RINGFLEET_CLI=$2

failures=0 case_name=none sshd_pid='' sleeper='' made_run_sshd=''
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ringfleet_ssh.XXXXXX") || exit 1
# Nothing of the real home is read or written.
export HOME=$tmp/home XDG_STATE_HOME=$tmp/state
unset RINGFLEET_BIN_DIR RINGFLEET_SSH_OPTIONS
mkdir -p "$HOME" "$XDG_STATE_HOME" "$tmp/bin"
exec 7>"$tmp/inherited"  # Which no daemon may keep open.

clean_up() {
  local file pid
  # Only what this test recorded; a failed case may have left daemons.
  for file in "$tmp"/started/*; do
    [[ -e $file ]] || continue
    pid=${file##*/}
    if [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *"$tmp"* ]]; then
      kill -KILL "$pid"
    fi
  done
  [[ -z $sleeper ]] || kill "$sleeper" 2>/dev/null
  if [[ -n $sshd_pid ]]; then
    kill "$sshd_pid" 2>/dev/null
    wait "$sshd_pid" 2>/dev/null
  fi
  [[ -z $made_run_sshd ]] || rmdir /run/sshd 2>/dev/null
  rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

skip() {
  echo "SKIPPED: $*"
  exit 77
}

# ---- Checks. ----

it() { case_name=$*; }

failed() {
  echo "FAILED: $case_name: $*"
  printf '    %s\n' "${output:-}"
  failures=$((failures + 1))
}

# Runs fleet.sh; leaves its output and exit code in `output` and `code`.
fleet() {
  local verb=$1
  shift
  output=$(timeout 100 "$fleet_sh" "$verb" --cluster "$tmp/fleet.yaml" \
    --bin-dir "$tmp/bin" "$@" 2>&1)
  code=$?
}

expect_code() { [[ $code == "$1" ]] || failed "exit code $code, want $1"; }

expect_line() {
  grep -Eqx -- "$1" <<<"$output" || failed "no line matches '$1'"
}

expect_no_line() {
  ! grep -Eq -- "$1" <<<"$output" || failed "a line matches '$1'"
}

await_line() {  # PATTERN FILE
  local i
  for ((i = 0; i < 600; ++i)); do
    grep -Eqx -- "$1" "$2" && return
    sleep 0.1
  done
  failed "no line of $2 matches '$1'"
}

expect_lines() {
  local n
  n=$(wc -l <<<"$output")
  [[ $n == "$1" ]] || failed "$n lines, want $1"
}

pid_of() {  # LABEL
  cut -d' ' -f1 "$XDG_STATE_HOME/ringfleet/$name/$1.pid"
}

alive() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  [[ ${stat##*) } != [ZX]* ]]
}

# ---- The stand-ins: they record themselves, say that they listen, and sleep
# until signalled. ----

stand_in() {  # NAME
  cat >"$tmp/bin/$1" <<END
#!/usr/bin/env bash
mkdir -p $tmp/started && touch $tmp/started/\$\$
echo "$1 \$*"
echo "cwd \$PWD"
ls -m /proc/\$\$/fd
[[ ! -e $tmp/stubborn ]] || trap '' TERM
if [[ -e $tmp/broken ]]; then echo "address already in use"; exit 7; fi
while [[ \$# -gt 0 && \$1 != --port-file ]]; do shift; done
echo 1 >"\$2"
# The folder in the command line tells the clean-up whose process this is.
exec -a "$tmp/$1" sleep 600
END
  chmod +x "$tmp/bin/$1"
}
stand_in ringfleet-worker
stand_in ringfleet-coordinator

# ---- The verbs, on whatever $tmp/fleet.yaml describes: 3 workers. ----

check_verbs() {
  local worker again follower rank

  it "start starts every process"
  fleet start
  expect_code 0
  expect_lines 4
  expect_line '\[0 [^ ]+\] started pid [0-9]+'
  expect_line '\[2 [^ ]+\] started pid [0-9]+'
  expect_line '\[coordinator [^ ]+\] started pid [0-9]+'
  worker=$(pid_of rank-1)

  it "processes survive the connection, in sessions of their own"
  for label in rank-0 rank-1 rank-2 coordinator; do
    alive "$(pid_of $label)" || failed "$label is gone"
  done
  [[ $(ps -o sid= -p "$worker" | tr -d ' ') == "$worker" ]] ||
    failed "rank 1 is not a session leader"

  it "a worker gets its rank, addresses and limits, and logs to its file"
  output=$(cat "$XDG_STATE_HOME/ringfleet/$name/rank-1.log")
  expect_line "ringfleet-worker --rank 1 --listen 127.0.0.2:7102 --advertise \
127.0.0.2:7102 --coordinator 127.0.0.1:7100 --threads 3 --numa-node 0 \
--memory-gib 1.5 --log-file $XDG_STATE_HOME/ringfleet/$name/rank-1.log \
--port-file $XDG_STATE_HOME/ringfleet/$name/rank-1.port"
  # Nothing inherited, but for bash's own 255: its script.
  expect_line '0, 1, 2, 255'
  expect_line "cwd $XDG_STATE_HOME/ringfleet/$name"
  output=$(cat "$XDG_STATE_HOME/ringfleet/$name/rank-0.log")
  expect_line ".* --threads cores/[1-9] --log-file .*"

  it "the coordinator gets the fleet with absolute paths"
  output=$(cat "$XDG_STATE_HOME/ringfleet/$name/coordinator.log")
  expect_line "ringfleet-coordinator --cluster .*/$name/cluster.yaml --log-file .*"
  output=$(cat "$XDG_STATE_HOME/ringfleet/$name/cluster.yaml")
  expect_line "model: \"$tmp/tiny\""

  it "start of a running fleet changes nothing"
  fleet start
  expect_code 0
  expect_line "\[1 [^ ]+\] already running pid $worker"
  expect_no_line ' started '
  alive "$worker" || failed "rank 1 is gone"

  it "start of a running fleet needs no space on a disk"
  output=$(
    ulimit -f 0
    timeout 100 "$fleet_sh" start --cluster "$tmp/fleet.yaml" \
      --bin-dir "$tmp/bin" 2>&1
  )
  code=$?
  expect_code 0
  expect_line "\[1 [^ ]+\] already running pid $worker"
  expect_line '\[coordinator [^ ]+\] already running pid [0-9]+'

  it "a file of another folder does not take a fleet of its name over"
  mkdir -p "$tmp/other"
  sed 's/^model: .*/model: else/' "$tmp/fleet.yaml" >"$tmp/other/fleet.yaml"
  for verb in start stop restart; do
    fleet "$verb" --cluster "$tmp/other/fleet.yaml"
    expect_code 1
    expect_line "\[1 [^ ]+\] refused: pid $worker, which was started from \
$tmp/fleet.yaml"
  done
  fleet status --cluster "$tmp/other/fleet.yaml"
  expect_line "\[1 [^ ]+\] running pid $worker, which was started from \
$tmp/fleet.yaml"
  alive "$worker" || failed "rank 1 is gone"
  # A copy is the same fleet, and so is the file once it was edited.
  cp "$tmp/fleet.yaml" "$tmp/copy.yaml"
  sed -i 's/^model: .*/&-2/' "$tmp/fleet.yaml"
  for file in copy fleet; do
    fleet start --cluster "$tmp/$file.yaml"
    expect_code 0
    expect_line "\[1 [^ ]+\] already running pid $worker"
  done
  cp "$tmp/copy.yaml" "$tmp/fleet.yaml"

  it "status says what runs"
  fleet status
  expect_code 0
  expect_lines 4
  expect_line "\[1 [^ ]+\] running pid $worker"

  it "ringfleet logs prints the log of each process, tagged"
  output=$(timeout 100 "$RINGFLEET_CLI" logs --cluster "$tmp/fleet.yaml" 2>&1)
  code=$?
  expect_code 0
  expect_line '\[0 [^ ]+\] ringfleet-worker --rank 0 .*'
  expect_line '\[1 [^ ]+\] ringfleet-worker --rank 1 .*'
  expect_line '\[coordinator [^ ]+\] ringfleet-coordinator --cluster .*'
  {
    echo '2020-01-01T00:00:00.000Z I worker 1 a.cc:1] long ago'
    date -u '+%Y-%m-%dT%H:%M:%S.000Z I worker 1 a.cc:1] just now'
  } >>"$XDG_STATE_HOME/ringfleet/$name/rank-1.log"
  output=$(timeout 100 "$RINGFLEET_CLI" logs --cluster "$tmp/fleet.yaml" \
    --hosts 1 --since 10m 2>&1)
  code=$?
  expect_code 0
  expect_lines 1
  expect_line '\[1 [^ ]+\] .* just now'

  it "ringfleet logs --follow goes on with new lines of all hosts"
  timeout 100 "$RINGFLEET_CLI" logs --cluster "$tmp/fleet.yaml" --hosts 0-1 \
    --follow >"$tmp/followed" 2>&1 &
  follower=$!
  for rank in 0 1; do
    await_line "\[$rank [^ ]+\] cwd .*" "$tmp/followed"
    echo "a new line of $rank" >>"$XDG_STATE_HOME/ringfleet/$name/rank-$rank.log"
    await_line "\[$rank [^ ]+\] a new line of $rank" "$tmp/followed"
  done
  kill -INT "$follower"
  wait "$follower"
  code=$?
  expect_code 130

  it "restart of a range replaces only its processes"
  again=$(pid_of rank-0)
  fleet restart --hosts 1-2
  expect_code 0
  expect_lines 4
  expect_line "\[1 [^ ]+\] stopped pid $worker"
  expect_line '\[2 [^ ]+\] started pid [0-9]+'
  ! alive "$worker" || failed "the old rank 1 lives"
  alive "$(pid_of rank-1)" || failed "no new rank 1"
  [[ $(pid_of rank-0) == "$again" ]] || failed "rank 0 was touched"

  it "a range includes both ends, and may name the coordinator"
  fleet stop --hosts 0-1
  expect_code 0
  expect_lines 2
  fleet status
  expect_line '\[0 [^ ]+\] not running'
  expect_line '\[1 [^ ]+\] not running'
  expect_line '\[2 [^ ]+\] running pid [0-9]+'
  fleet stop --hosts coordinator
  expect_lines 1
  expect_line '\[coordinator [^ ]+\] stopped pid [0-9]+'

  it "stop ends the rest, and stopping again is no failure"
  worker=$(pid_of rank-2)
  fleet stop
  expect_code 0
  expect_line "\[2 [^ ]+\] stopped pid $worker"
  expect_line '\[0 [^ ]+\] not running'
  ! alive "$worker" || failed "rank 2 lives"
  fleet stop
  expect_code 0
  expect_lines 4
  expect_no_line 'stopped'

  it "a process that ignores SIGTERM is killed after the grace"
  touch "$tmp/stubborn"
  fleet start --hosts 0
  worker=$(pid_of rank-0)
  fleet stop --hosts 0 --grace 1
  rm "$tmp/stubborn"
  expect_code 0
  expect_line "\[0 [^ ]+\] killed pid $worker after 1 s without an end"
  ! alive "$worker" || failed "it lives"

  it "a recycled pid is neither taken for the daemon nor killed"
  sleep 600 &
  sleeper=$!
  echo "$sleeper 1 $(cat /proc/sys/kernel/random/boot_id)" \
    >"$XDG_STATE_HOME/ringfleet/$name/rank-0.pid"
  fleet status --hosts 0
  expect_line "\[0 [^ ]+\] not running \(pid $sleeper has ended by itself: \
killed, or crashed\)"
  fleet stop --hosts 0
  expect_code 0
  expect_line "\[0 [^ ]+\] not running \(pid $sleeper has ended by itself: \
killed, or crashed\)"
  alive "$sleeper" || failed "the bystander was killed"
  echo "$sleeper 1 another-boot" >"$XDG_STATE_HOME/ringfleet/$name/rank-0.pid"
  fleet start --hosts 0
  expect_code 0
  expect_line "\[0 [^ ]+\] pid $sleeper ended when the host restarted"
  expect_line '\[0 [^ ]+\] started pid [0-9]+'
  alive "$sleeper" || failed "the bystander was killed"
  echo garbage >"$XDG_STATE_HOME/ringfleet/$name/rank-1.pid"
  fleet stop --hosts 0-1
  expect_code 0
  expect_line '\[1 [^ ]+\] not running \(stale pid file\)'
  kill "$sleeper"
  wait "$sleeper" 2>/dev/null
  sleeper=''

  it "a daemon that ends at once fails with the end of its log"
  touch "$tmp/broken"
  fleet start --hosts 1
  rm "$tmp/broken"
  expect_code 1
  expect_line '\[1 [^ ]+\] ended at once with exit code 7; the end of .*'
  expect_line '\[1 [^ ]+\] address already in use'
  expect_line 'fleet.sh: start failed on 1 \([^ ]+\)'
  fleet status --hosts 1
  expect_line '\[1 [^ ]+\] not running'

  it "two starts at once start one process"
  "$fleet_sh" start --cluster "$tmp/fleet.yaml" --bin-dir "$tmp/bin" \
    --hosts 0 >"$tmp/first" 2>&1 &
  fleet start --hosts 0
  wait "$!"
  output=$(cat "$tmp/first" - <<<"$output")
  expect_lines 2
  expect_line '\[0 [^ ]+\] started pid [0-9]+'
  expect_line '\[0 [^ ]+\] already running pid [0-9]+'
  fleet stop --hosts 0

  it "run keeps quotes, and fails where the command does"
  fleet run --hosts 0 "echo \"it's\" 'a  b' \$((6 * 7)); echo no end of line >&2"
  expect_code 0
  expect_line "\[0 [^ ]+\] it's a  b 42"
  expect_line '\[0 [^ ]+\] no end of line'
  fleet run --hosts 0 -- sh -c "'exit 5'"
  expect_code 1
  expect_line 'fleet.sh: run failed on 0 \([^ ]+\)'
  fleet run --hosts 0 --timeout 1 'sleep 30'
  expect_code 1

  it "copy keeps bytes and mode, into a folder or under a name"
  head -c 300000 /dev/urandom >"$tmp/blob"
  chmod 750 "$tmp/blob"
  mkdir -p "$tmp/to"
  fleet copy --hosts 0 "$tmp/blob" "$tmp/to"
  expect_code 0
  expect_line "\[0 [^ ]+\] copied to $tmp/to/blob"
  cmp "$tmp/blob" "$tmp/to/blob" || failed "the copy differs"
  [[ $(stat -c %a "$tmp/to/blob") == 750 ]] || failed "the mode differs"
  fleet copy --hosts 0 "$tmp/blob" "$tmp/to/it's new"
  cmp "$tmp/blob" "$tmp/to/it's new" || failed "the named copy differs"
  mkdir -p "$tmp/tree/a/b" && echo x >"$tmp/tree/a/b/c"
  fleet copy --hosts 0 "$tmp/tree" "$tmp/to/"
  expect_code 0
  cmp "$tmp/tree/a/b/c" "$tmp/to/tree/a/b/c" || failed "the folder differs"
  fleet copy --hosts 0 "$tmp/blob" /proc/nowhere/
  expect_code 1
  [[ $(find "$tmp/to" -name '*.partial.*') == '' ]] || failed "left-overs"
}

write_fleet() {  # HOST_0 HOST_1 HOST_2, then the ssh section
  name=$1
  cat >"$tmp/fleet.yaml" <<END
name: $name
model: tiny
coordinator: {port: 7100}
workers:
  - {host: $2, address: 127.0.0.1, port: 7101}
  - {host: $3, address: 127.0.0.2, port: 7102, threads: 3, numa_node: 0, memory_gib: 1.5}
  - {host: $4, address: 127.0.0.3, port: 7103}
$5
END
}

# ---- Without ssh. ----

write_fleet local-fleet 127.0.0.1 localhost 127.0.0.3 ''
check_verbs

it "ringfleet logs prints a large log in seconds"
# Tens of MB/s need a second. A system call for each byte needs most of a minute.
yes "$(printf '%0127d' 0)" | head -n 320000 \
  >"$XDG_STATE_HOME/ringfleet/$name/rank-0.log"
output=$(timeout 12 "$RINGFLEET_CLI" logs --cluster "$tmp/fleet.yaml" \
  --hosts 0 | sort | uniq -c)
expect_line ' *320000 \[0 127.0.0.1\] 0+'
rm "$XDG_STATE_HOME/ringfleet/$name/rank-0.log"

it "run and copy reach a shared host once"
fleet run 'echo once'
expect_code 0
expect_lines 1

it "resolved targets replace the cluster file"
"$RINGFLEET_CLI" targets --cluster "$tmp/fleet.yaml" --hosts 1 >"$tmp/targets"
output=$(cd / && RINGFLEET_CLI=/nonexistent "$fleet_sh" start \
  --targets "$tmp/targets" --bin-dir "$tmp/bin" 2>&1)
code=$?
expect_code 0
expect_lines 1
expect_line '\[1 [^ ]+\] started pid [0-9]+'
output=$("$fleet_sh" stop --targets - <"$tmp/targets" 2>&1)
code=$?
expect_code 0
expect_line '\[1 [^ ]+\] stopped pid [0-9]+'
fleet status --targets "$tmp/targets"
expect_code 2
expect_line "fleet.sh: --targets replaces --cluster and --hosts; .*"
output=$("$fleet_sh" status --targets - </dev/null 2>&1)
code=$?
expect_code 2
expect_line "fleet.sh: no targets from -, want the output of ringfleet targets .*"

it "a wrong call is told, with exit code 2"
fleet start --hosts 0-3
expect_code 2
expect_line "ringfleet: hosts '0-3', want RANK or FIRST-LAST within 0-2"
fleet start --host 1
expect_code 2
fleet run
expect_code 2
fleet copy "$tmp/absent" /tmp
expect_code 2
output=$("$fleet_sh" destroy 2>&1)
code=$?
expect_code 2
output=$("$fleet_sh" --help 2>&1)
code=$?
expect_code 0
expect_line 'usage: fleet.sh VERB .*'
echo 'wokers: []' >>"$tmp/fleet.yaml"
fleet status
expect_code 2
expect_line "ringfleet: .*/fleet.yaml:[0-9]+: unknown key 'wokers', did you mean 'workers'\?"

it "an interrupt ends what was started for it"
write_fleet local-fleet 127.0.0.1 localhost 127.0.0.3 ''
mkfifo "$tmp/pipe"
"$fleet_sh" run --cluster "$tmp/fleet.yaml" --timeout 60 \
  "echo \$\$ >$tmp/pipe; exec sleep 600" >"$tmp/interrupted" 2>&1 &
job=$!
command_pid=0
read -r -t 20 command_pid <"$tmp/pipe" || failed "the command did not begin"
kill -TERM "$job"
wait "$job"
code=$?
expect_code 143
! alive "$command_pid" || failed "the command lives"

it "an interrupted command ends in order, and is waited for"
"$fleet_sh" run --cluster "$tmp/fleet.yaml" --timeout 60 \
  "trap 'trap \"\" TERM; sleep 0.3; echo ended; sleep 0.3; touch $tmp/ended; exit' TERM
   echo \$\$ >$tmp/pipe; while :; do sleep 0.05; done" >"$tmp/interrupted" 2>&1 &
job=$!
read -r -t 20 command_pid <"$tmp/pipe" || failed "the command did not begin"
kill -TERM "$job"
wait "$job"
code=$?
output=$(<"$tmp/interrupted")
expect_code 143
expect_line "\[0 127.0.0.1\] ended"
[[ -e $tmp/ended ]] || failed "the command did not come to its end"
! alive "$command_pid" || failed "the command lives"

it "an interrupted command that does not end is killed"
"$fleet_sh" run --cluster "$tmp/fleet.yaml" --timeout 60 \
  "trap '' TERM; echo \$\$ >$tmp/pipe; exec sleep 600" >"$tmp/interrupted" 2>&1 &
job=$!
read -r -t 20 command_pid <"$tmp/pipe" || failed "the command did not begin"
kill -TERM "$job"
wait "$job"
code=$?
expect_code 143
! alive "$command_pid" || failed "the command lives"

it "a start that is interrupted leaves no process that nobody finds"
for delay in 0.05 0.1 0.12 0.14 0.16 0.18 0.2 0.25; do
  "$fleet_sh" start --cluster "$tmp/fleet.yaml" --bin-dir "$tmp/bin" \
    >"$tmp/interrupted" 2>&1 &
  job=$!
  sleep "$delay"
  kill -TERM "$job" 2>/dev/null
  wait "$job"
  fleet stop
  expect_code 0
  for file in "$tmp"/started/*; do
    [[ -e $file ]] || continue
    ! alive "${file##*/}" || failed "${file##*/} lives, interrupted after $delay s"
  done
done

# ---- Over ssh. ----

if ((failures > 0)); then
  echo "$failures checks failed without ssh"
  exit 1
fi
sshd=$(command -v sshd || command -v /usr/sbin/sshd) || skip "no sshd installed"
command -v ssh >/dev/null || skip "no ssh client installed"
if [[ $(id -u) == 0 && ! -d /run/sshd ]]; then
  mkdir -m 755 /run/sshd 2>/dev/null || skip "cannot create /run/sshd"
  made_run_sshd=yes
fi

ssh-keygen -q -t ed25519 -N '' -f "$tmp/host_key" || exit 1
ssh-keygen -q -t ed25519 -N '' -f "$tmp/user_key" || exit 1

# sshd cannot bind port 0: try free ones until it stays up.
start_sshd() {
  local port tries
  port=$((20000 + RANDOM % 20000))
  {
    # 127.0.0.4 stays a host that does not answer.
    printf 'ListenAddress 127.0.0.%s\n' 1 2 3
    cat <<END
Port $port
HostKey $tmp/host_key
AuthorizedKeysFile $tmp/user_key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
SetEnv XDG_STATE_HOME=$XDG_STATE_HOME HOME=$HOME
END
  } >"$tmp/sshd_config"
  # Not even a killed test leaves it for long.
  timeout 600 "$sshd" -D -e -f "$tmp/sshd_config" 2>"$tmp/sshd.log" &
  sshd_pid=$!
  for ((tries = 0; tries < 100; ++tries)); do
    if [[ $(grep -c 'Server listening' "$tmp/sshd.log") == 3 ]]; then
      ssh_port=$port
      return 0
    fi
    kill -0 "$sshd_pid" 2>/dev/null || break
    sleep 0.05
  done
  kill "$sshd_pid" 2>/dev/null
  wait "$sshd_pid" 2>/dev/null
  sshd_pid=''
  return 1
}
for _ in 1 2 3 4 5; do start_sshd && break; done
if [[ -z $sshd_pid ]]; then
  cat "$tmp/sshd.log"
  skip "this sshd cannot run here (its log is above)"
fi

# Options come from the file and from the environment.
export RINGFLEET_SSH_OPTIONS="-o StrictHostKeyChecking=no -o \
UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
section="ssh:
  user: $(id -un)
  port: $ssh_port
  options: [-F, /dev/null, -i, $tmp/user_key, -o, IdentitiesOnly=yes]"
write_fleet ssh-fleet 127.0.0.1 127.0.0.2 127.0.0.3 "$section"

fleet run --hosts 0 true
if ((code != 0)) && grep -q 'account is locked' "$tmp/sshd.log"; then
  skip "this account is locked, sshd lets nobody in"
fi
if ((code != 0)) && grep -q 'account is \(currently \)*not available' <<<"$output"; then
  skip "this account has no login shell"
fi
it "ssh reaches each host"
fleet run "echo on \$SSH_CONNECTION"
expect_code 0
expect_lines 3
expect_line "\[1 127.0.0.2\] on .* 127.0.0.2 $ssh_port"
expect_line "\[2 127.0.0.3\] on .* 127.0.0.3 $ssh_port"

check_verbs

it "a host that does not answer is named, and the others are done"
write_fleet ssh-fleet 127.0.0.1 127.0.0.4 127.0.0.3 "$section"
fleet start --hosts 0-2
expect_code 1
expect_line '\[0 127.0.0.1\] started pid [0-9]+'
expect_line '\[2 127.0.0.3\] started pid [0-9]+'
expect_line '\[1 127.0.0.4\] .*Connection refused.*'
expect_line 'fleet.sh: start failed on 1 \(127.0.0.4\)'
fleet stop
expect_code 1
expect_line '\[0 127.0.0.1\] stopped pid [0-9]+'
expect_line 'fleet.sh: stop failed on 1 \(127.0.0.4\)'

it "check finds ports in use, missing files of a model, and space"
write_fleet ssh-fleet 127.0.0.1 127.0.0.2 127.0.0.3 "$section"
mkdir -p "$tmp/small" && touch "$tmp/small/config.json"
# Only sshd listens.
fleet check --hosts coordinator -- "$tmp/absent" - 127.0.0.1 "$ssh_port" \
  127.0.0.4 "$ssh_port" 0.0.0.0 "$ssh_port" 127.0.0.1 7100 0.0.0.0 7100
expect_code 0
expect_lines 5
expect_line "\[coordinator 127.0.0.1\] [1-9][0-9]* bytes free in \
$XDG_STATE_HOME/ringfleet/ssh-fleet"
expect_line "\[coordinator 127.0.0.1\] no config.json in $tmp/absent"
expect_line "\[coordinator 127.0.0.1\] no weights in $tmp/absent"
expect_line "\[coordinator 127.0.0.1\] port $ssh_port on 127.0.0.1 is in use"
expect_line "\[coordinator 127.0.0.1\] port $ssh_port on 0.0.0.0 is in use"
fleet check --hosts coordinator -- "$tmp/small" "$tmp/not/yet"
expect_lines 2
expect_line "\[coordinator 127.0.0.1\] [1-9][0-9]* bytes free in $tmp/not/yet"
expect_line "\[coordinator 127.0.0.1\] no weights in $tmp/small"
touch "$tmp/small/model.safetensors"
fleet check --hosts coordinator -- "$tmp/small" -
expect_lines 1
fleet check --hosts coordinator -- - - 127.0.0.1
expect_code 2

it "log_dir moves the logs"
write_fleet ssh-fleet 127.0.0.1 127.0.0.2 127.0.0.3 "log_dir: logs
$section"
fleet start --hosts 0
expect_code 0
[[ -s $tmp/logs/rank-0.log ]] || failed "no log in log_dir"
fleet stop --hosts 0

if ((failures > 0)); then
  echo "$failures checks failed"
  tail -n 20 "$tmp/sshd.log"
  exit 1
fi
echo "all checks passed, with and without ssh"
