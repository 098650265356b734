#!/usr/bin/env bash
# What a limited, proxied request costs: gateway, origin and load on loopback, nginx doing the same in the same rounds.
#
#   benches/request.sh       ROUNDS=8 and DURATION=2 (seconds of load in a round) can be set
#
# Prints medians of: requests/s; CPU per request; its ratio to nginx's in the same round, with the least and the greatest.
# And user instructions per request, from two callgrind runs of different length: what only a start costs cancels out, but
# for a calibration of clocks that differs by some millions, hence the length of the second. Writes nothing but a
# temporary directory and what cargo builds.
set -euo pipefail
cd "$(dirname "$0")/.."

ROUNDS=${ROUNDS:-8}
DURATION=${DURATION:-2}
SHORT=2000
LONG=22000
PATH=$PATH:/usr/sbin

tmp=$(mktemp -d)
cleanup() {
  trap - EXIT
  jobs -p | xargs -r kill 2>/dev/null || true
  wait
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

has() { command -v "$1" >/dev/null; }
say() { echo "$*" >&2; }

# --- the parts -------------------------------------------------------------------------------------------------------

# The measured server has the first core for itself, everything else shares the others.
here=() there=()
if has taskset && [ "$(nproc)" -gt 1 ]; then
  here=(taskset -c 0) there=(taskset -c "1-$(($(nproc) - 1))")
fi

# Sets $port to one that nobody listens on, below those that clients get.
free_port() {
  port=$((RANDOM % 10000 + 20000))
  while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
}

# start PORT COMMAND...: runs it until it listens; sets $pid.
start() {
  local port=$1
  shift
  "$@" >"$tmp/output" 2>&1 &
  pid=$!
  for _ in $(seq 300); do
    if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  say "does not listen: $*"
  cat "$tmp/output" >&2
  exit 1
}

stop() {
  kill "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

say 'building'
cargo bench --profile profiling --no-run --bench peer >"$tmp/build" 2>&1 || { cat "$tmp/build" >&2; exit 1; }
peer=$(sed -n 's/.*Executable benches\/peer.rs (\(.*\)).*/\1/p' "$tmp/build")
gateway=${peer%/deps/*}/paceway

free_port
origin=127.0.0.1:$port
start "$port" "${there[@]}" "$peer" --serve "$origin"

# gateway_config NAME STORE: sets $port and $admin, which opens last; writes $tmp/NAME.yaml.
gateway_config() {
  free_port
  admin=$port
  free_port
  cat >"$tmp/$1.yaml" <<YAML
listen: 127.0.0.1:$port
admin: 127.0.0.1:$admin
workers: 1
access_log: off
drain_timeout: 2s
store: $2
upstream: http://$origin
limiters:
  # A bucket that no run empties: there is a state to read and to write, and never a wait.
  plenty: { rate: 1000/s, burst: 1000000000 }
  none: { rate: 1/day, burst: 1 }
routes:
  - { suffix: /search, limiters: [plenty], max_wait: 2s }
  - { suffix: /refused, limiters: [none] }
YAML
}

nginx_config() {
  free_port
  cat >"$tmp/nginx.conf" <<CONF
daemon off;
master_process off;
pid $tmp/nginx.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000000;
  $(for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $tmp/$kind;"; done)
  limit_req_zone \$server_name zone=plenty:1m rate=1000000r/s;
  upstream origin { server $origin; keepalive 128; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:$port;
    location / {
      limit_req zone=plenty burst=100000 nodelay;
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $origin;
      proxy_set_header X-Forwarded-For \$remote_addr;
      proxy_set_header X-Forwarded-Proto \$scheme;
      proxy_set_header X-Forwarded-Host \$http_host;
    }
  }
}
CONF
}

# redis_server: sets $redis, its address, and $redis_pid.
redis_server() {
  free_port
  redis=127.0.0.1:$port
  start "$port" "${there[@]}" redis-server --bind 127.0.0.1 --port "$port" --save '' --appendonly no
  redis_pid=$pid
}

# Valgrind is slow and machines are busy: nothing may run into the usual time-out.
store() { echo "{ url: \"redis://$redis\", timeout: 10s }"; }

# --- CPU, in rounds that take turns ----------------------------------------------------------------------------------

# CPU of a process and its threads so far, in µs.
cpu() { awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) * 1000000 / hz }' "/proc/$1/stat"; }

# load NAME PID URL: one round; adds "requests/s" and "µs per request" to its samples.
load() {
  local before after
  before=$(cpu "$2")
  "${there[@]}" wrk -t1 -c64 -d"${DURATION}s" "$3" >"$tmp/wrk"
  after=$(cpu "$2")
  if grep -q 'Socket errors' "$tmp/wrk"; then say "$1: $(grep 'Socket errors' "$tmp/wrk")"; fi
  if [[ $1 != *refused* ]] && grep -q 'Non-2xx' "$tmp/wrk"; then say "$1: $(grep 'Non-2xx' "$tmp/wrk")"; fi
  awk -v cpu=$((after - before)) '
    / requests in / { requests = $1 }
    /^Requests\/sec/ { rate = $2 }
    END { if (!requests) exit 1; print rate, cpu / requests }' "$tmp/wrk" >>"$tmp/$1.samples"
}

# median FORMAT COLUMN FILE: FORMAT gets the median, the least and the greatest.
median() {
  awk -v c="$2" '{ print $c }' "$3" | sort -n | awk -v format="$1" '
    { v[NR] = $1 }
    END { printf format, (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[1], v[NR] }'
}

names=() running=() urls=()
# measure NAME PID URL: one more that takes part in the rounds.
measure() { names+=("$1") running+=("$2") urls+=("$3"); }

rounds() {
  gateway_config memory memory
  start "$admin" "${here[@]}" "$gateway" run --config "$tmp/memory.yaml"
  measure memory "$pid" "http://127.0.0.1:$port/v1/search"
  measure memory-refused "$pid" "http://127.0.0.1:$port/v1/refused"
  if has redis-server; then
    redis_server
    gateway_config redis "$(store)"
    start "$admin" "${here[@]}" "$gateway" run --config "$tmp/redis.yaml"
    measure redis "$pid" "http://127.0.0.1:$port/v1/search"
  fi
  if has nginx; then
    nginx_config
    start "$port" "${here[@]}" nginx -p "$tmp" -e stderr -c "$tmp/nginx.conf"
    measure nginx "$pid" "http://127.0.0.1:$port/v1/search"
  fi
  say "$ROUNDS rounds of ${#names[@]} × $DURATION s"
  local round i redis_before
  for round in $(seq 0 "$ROUNDS"); do
    for i in "${!names[@]}"; do
      [ "${names[i]}" != redis ] || redis_before=$(cpu "$redis_pid")
      load "${names[i]}" "${running[i]}" "${urls[i]}"
      [ "${names[i]}" != redis ] || awk -v cpu=$(($(cpu "$redis_pid") - redis_before)) \
        '/ requests in / { print cpu / $1 }' "$tmp/wrk" >>"$tmp/redis-server.samples"
    done
    # The first round only makes everything warm.
    [ "$round" -gt 0 ] || rm "$tmp"/*.samples
  done
  for i in "${!running[@]}"; do stop "${running[i]}"; done
}

# --- instructions ----------------------------------------------------------------------------------------------------

# count LENGTH PORT COMMAND...: user instructions from start to end with LENGTH requests in between.
count() {
  local length=$1 port=$2
  shift 2
  start "${admin:-$port}" valgrind --tool=callgrind --callgrind-out-file="$tmp/callgrind" "$@"
  timeout 120 "$peer" --get "127.0.0.1:$port" /v1/search "$length"
  # What a scrape does for the requests before it belongs to them.
  [ -z "$admin" ] || timeout 60 "$peer" --get "127.0.0.1:$admin" /metrics 1
  stop "$pid"
  sum=$(awk '/^(summary|totals):/ { print $2; exit }' "$tmp/callgrind")
}

# instructions NAME COMMAND...
instructions() {
  local name=$1 sum short
  shift
  say "callgrind: $name"
  count "$SHORT" "$port" "$@"
  short=$sum
  count "$LONG" "$port" "$@"
  echo $(((sum - short) / (LONG - SHORT))) >"$tmp/$name.instructions"
}

callgrind() {
  gateway_config memory memory
  instructions memory "$gateway" run --config "$tmp/memory.yaml"
  if has redis-server; then
    redis_server
    gateway_config redis "$(store)"
    instructions redis "$gateway" run --config "$tmp/redis.yaml"
  fi
  if has nginx; then
    nginx_config
    admin=''
    instructions nginx nginx -p "$tmp" -e stderr -c "$tmp/nginx.conf"
  fi
}

# --- all together ----------------------------------------------------------------------------------------------------

# row NAME TITLE
row() {
  local samples=$tmp/$1.samples rate=- cpu=- ratio=- count=-
  if [ -f "$samples" ]; then
    rate=$(median %.0f 1 "$samples")
    cpu=$(median %.1f 2 "$samples")
    if [ -f "$tmp/nginx.samples" ]; then
      paste -d' ' "$samples" "$tmp/nginx.samples" | awk '{ print $2 / $4 }' >"$tmp/ratios"
      ratio=$(median '%.2f (%.2f-%.2f)' 1 "$tmp/ratios")
    fi
  fi
  [ ! -f "$tmp/$1.instructions" ] || count=$(<"$tmp/$1.instructions")
  [ "$rate$count" = -- ] || printf '%-28s %10s %9s %18s %13s\n' "$2" "$rate" "$cpu" "$ratio" "$count"
}

has nginx || say 'nginx is not installed: nothing to compare with'
has redis-server || say 'redis-server is not installed: the shared store is skipped'
if has wrk; then rounds; else say 'wrk is not installed: requests/s and CPU are skipped'; fi
if has valgrind; then callgrind; else say 'valgrind is not installed: instructions are skipped'; fi

printf '\n%-28s %10s %9s %18s %13s\n' 'a request' 'requests/s' 'CPU, µs' '× nginx' 'instructions'
row memory 'gateway, memory'
row memory-refused 'gateway, memory, refused'
row redis 'gateway, Redis, one hot key'
row nginx 'nginx limit_req'
if [ -f "$tmp/redis-server.samples" ]; then
  median 'redis-server, CPU a request: %.1f µs\n' 1 "$tmp/redis-server.samples"
fi
