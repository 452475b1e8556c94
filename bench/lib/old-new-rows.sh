# The rows of bench/old-new, and how each is measured. What programs are told is as in crates/lab/bench.
#
# A function of a row sets `figure` and, for socket programs, `lanes`: the connections that got a lane in what was
# measured. It finds `$build`, `under` (the words before a program), `$port` and `$work`.

# name | unit | less or more is better | lanes | programs | function and arguments
rows=(
    'redis GET 1 client|k/s|more|1|redis-server redis-benchmark redis-cli|redis_get both 1'
    'redis GET 10 clients|k/s|more|10|redis-server redis-benchmark redis-cli|redis_get both 10'
    'redis GET 50 clients|k/s|more|50|redis-server redis-benchmark redis-cli|redis_get both 50'
    'redis GET 500 clients|k/s|more|500|redis-server redis-benchmark redis-cli|redis_get both 500'
    'redis GET 10 clients server-only|k/s|more|0|redis-server redis-benchmark redis-cli|redis_get server 10'
    'redis GET 50 clients server-only|k/s|more|0|redis-server redis-benchmark redis-cli|redis_get server 50'
    'memcached 10 clients|k/s|more|10|memcached memcaslap|memcached_get 10'
    'iperf3 1 stream|Gb/s|more|1|iperf3|iperf 1'
    'iperf3 3 streams|Gb/s|more|3|iperf3|iperf 3'
    'sockperf ping-pong 64 B|us|less|1|sockperf|sockperf_latency'
    'sockperf ping-pong 64 B polling|us|less|1|sockperf|sockperf_latency --nonblocked'
    'nginx keep-alive 1 KiB|k/s|more|50|nginx wrk|nginx_kept'
    'start: sluice run -- true|us|less|0|sh|starts'
    'fork|us|less|0|perl|forks'
    'fork with a lane|us|less|1|perl redis-server|forks_with_lane'
    'exec|us|less|0|sh|execs'
    'shm send_lat 8 B|us|less|0|ib_send_lat|perftest shm - ib_send_lat -s 8 -n 200000'
    'shm write_lat 8 B|us|less|0|ib_write_lat|perftest shm - ib_write_lat -s 8 -n 200000'
    'shm read_lat 8 B|us|less|0|ib_read_lat|perftest shm - ib_read_lat -s 8 -n 100000'
    'shm send_bw 64 B|M/s|more|0|ib_send_bw|perftest shm - ib_send_bw -s 64 -n 2000000'
    'shm send_bw 64 KiB|GB/s|more|0|ib_send_bw|perftest shm - ib_send_bw -s 65536 -n 50000'
    'shm write_bw 64 KiB|GB/s|more|0|ib_write_bw|perftest shm - ib_write_bw -s 65536 -n 50000'
)
for device in roce roce-udp; do
    rows+=(
        "$device send_lat 8 B|us|less|0|root ip ib_send_lat|perftest $device 1500 ib_send_lat -s 8 -n 50000"
        "$device write_lat 8 B|us|less|0|root ip ib_write_lat|perftest $device 1500 ib_write_lat -s 8 -n 50000"
        "$device write_lat 4 KiB|us|less|0|root ip ib_write_lat|perftest $device 1500 ib_write_lat -s 4096 -n 20000"
        "$device send_bw 64 B|M/s|more|0|root ip ib_send_bw|perftest $device 1500 ib_send_bw -s 64 -n 500000"
        "$device send_bw 64 B 16 QPs|M/s|more|0|root ip ib_send_bw|perftest $device 1500 ib_send_bw -s 64 -n 50000 -q 16"
        "$device write_bw 64 KiB|GB/s|more|0|root ip ib_write_bw|perftest $device 1500 ib_write_bw -s 65536 -n 10000"
        "$device write_bw 64 KiB mtu 9000|GB/s|more|0|root ip ib_write_bw|perftest $device 9000 ib_write_bw -s 65536 -n 15000"
    )
done

# How long a run of a program measures that can be told, and how long any may take.
SECONDS_MEASURED=2
SECONDS_MAX=60

listens() {
    local hex
    printf -v hex %04X "$port"
    grep -q ":$hex 00000000:0000 0A" /proc/net/tcp
}

port=23000
next_port() {
    port=$((port + 1))
    while listens; do port=$((port + 1)); done
}

# Starts a server and waits until it listens on $port.
serve() { # words
    local try
    timeout -k 5 "$SECONDS_MAX" "$@" >"$work/server" 2>&1 &
    for ((try = 0; try < 200; try++)); do
        if listens; then return 0; fi
        kill -0 $! 2>/dev/null || break
        sleep 0.05
    done
    why="the server did not listen on port $port: $(tail -n 1 "$work/server")"
    return 1
}

# Runs a client to its end and sets `took_us`. In the background, because `wait` lets Ctrl-C through.
client() { # words
    local status=0 begin=$EPOCHREALTIME end
    timeout -k 5 "$SECONDS_MAX" "$@" >"$work/client" 2>&1 &
    wait $! || status=$?
    end=$EPOCHREALTIME
    took_us=$((${end/./} - ${begin/./}))
    case $status in
    0) return 0 ;;
    124) why="the client was still running after $SECONDS_MAX s" ;;
    *) why="the client failed with exit status $status: $(tail -n 1 "$work/client")" ;;
    esac
    return 1
}

# Connections that got a lane so far, by the daemon's own count.
lanes_given() {
    "$build/sluice" status --json --socket "$SLUICE_SOCKET" 2>/dev/null |
        sed -n 's/.*"matches": *\([0-9]*\).*/\1/p' | grep . || echo 0
}

# Runs a client whose lanes count.
measured() { # words
    local before
    before=$(lanes_given)
    client "$@" || return
    lanes=$(($(lanes_given) - before))
}

serve_redis() {
    serve "${under[@]}" redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$work"
}
redis_get() { # both or server (what is under sluice), clients
    local words=(redis-benchmark -h 127.0.0.1 -p "$port" -t get -d 2048 -r 10000 -c "$2" --csv) requests
    [[ $1 == server ]] || words=("${under[@]}" "${words[@]}")
    serve_redis || return
    # A GET that finds no key is answered by five bytes.
    client redis-cli -p "$port" eval 'for key = 0, 9999 do
            redis.call("set", string.format("key:%012d", key), string.rep("x", 2048))
        end
        return "filled"' 0 && grep -q filled "$work/client" || return
    client "${words[@]}" -n $((10000 + 20 * $2)) || return
    requests=$(redis_rate | awk -v s="$SECONDS_MEASURED" '{printf "%d", $1 * 1000 * s + 1}')
    measured "${words[@]}" -n "$requests" || return
    figure=$(redis_rate)
}
redis_rate() { awk -F'"' '$2 == "GET" {print $4 / 1000}' "$work/client"; }

memcached_get() { # clients
    serve "${under[@]}" memcached -u "$(id -un)" -l 127.0.0.1 -p "$port" -t 1 || return
    measured "${under[@]}" memcaslap -s "127.0.0.1:$port" -T 1 -c "$1" -X 2048 -t "${SECONDS_MEASURED}s" || return
    figure=$(sed -n 's/.* TPS: \([0-9]*\) .*/\1/p' "$work/client" | awk '{print $1 / 1000}')
}

iperf() { # streams
    local words=("${under[@]}" iperf3 -c 127.0.0.1 -p "$port" -P "$1" -J) try
    serve "${under[@]}" iperf3 -s -B 127.0.0.1 -p "$port" --forceflush || return
    client "${words[@]}" -n 256M || return
    # It serves one client at a time, and is busy for a moment after one.
    for ((try = 0; try < 100; try++)); do
        (($(grep -c 'Server listening' "$work/server") < 2)) || break
        sleep 0.05
    done
    measured "${words[@]}" -t "$SECONDS_MEASURED" || return
    figure=$(awk '/"sum_received"/ {end = 1} end && /"bits_per_second"/ {print $2 / 1e9; exit}' "$work/client")
}

sockperf_latency() { # options of both ends
    serve "${under[@]}" sockperf server -i 127.0.0.1 -p "$port" --tcp "$@" || return
    # Without --mps it makes room for fewer messages than a lane carries.
    measured "${under[@]}" sockperf ping-pong -i 127.0.0.1 -p "$port" --tcp -m 64 -t "$SECONDS_MEASURED" \
        --mps 5000000 "$@" || return
    figure=$(sed -n 's/.*percentile 50\.000 *= *\([0-9.]*\).*/\1/p' "$work/client")
}

nginx_kept() {
    local module paths='' words=("${under[@]}" wrk -t 1 -c 50 --latency "http://127.0.0.1:$port/1k")
    for module in fastcgi uwsgi scgi; do
        nginx -V 2>&1 | grep -q -- "--without-http_${module}_module" || paths+="${module}_temp_path temp_$module; "
    done
    mkdir -p "$work/www"
    head -c 1024 /dev/zero | tr '\0' x >"$work/www/1k"
    sed "s/@WORKERS@/1/; s/@PORT@/$port/; s/@TEMP_PATHS@/$paths/" "$here/nginx.conf" >"$work/nginx.conf"
    serve "${under[@]}" nginx -p "$work" -e stderr -c "$work/nginx.conf" || return
    client "${words[@]}" -d 1s || return
    measured "${words[@]}" -d "${SECONDS_MEASURED}s" || return
    ! grep -E 'Non-2xx|Socket errors' "$work/client" >"$work/refused" || { why="wrk: $(<"$work/refused")" && return 1; }
    figure=$(awk '/^Requests\/sec:/ {print $2 / 1000}' "$work/client")
}

# Microseconds for each of the things that a program does so often, by the time of the whole program.
each() { # number, words
    # A first program starts the daemon.
    client "${under[@]}" true || return
    measured "${@:2}" || return
    figure=$((took_us / $1))
}
# shellcheck disable=SC2016
starts() { each 300 sh -ec 'n=0; while [ "$n" -lt 300 ]; do "$0" run -- true; n=$((n + 1)); done' "$build/sluice"; }
# A shell that becomes itself again and again.
execs() {
    # shellcheck disable=SC2016
    local chain='[ "$1" -eq 0 ] || exec sh -c "$0" "$0" $(($1 - 1))'
    each 1000 "${under[@]}" sh -c "$chain" "$chain" 1000
}
# shellcheck disable=SC2016
forks() { # before the first one
    each 1000 "${under[@]}" perl -e 'use POSIX "_exit"; use IO::Socket::INET;'"${1-}"'
        for (1 .. 1000) { defined(my $child = fork) or die "no fork"; _exit(0) if !$child; waitpid $child, 0 }'
}
# A connection gets its lane after some turnarounds, and not at once.
forks_with_lane() {
    serve_redis || return
    # shellcheck disable=SC2016
    forks '$end = IO::Socket::INET->new("127.0.0.1:'"$port"'") or die "no connection";
        for (1 .. 200) { syswrite $end, "PING\r\n"; sysread $end, my $answer, 64 }'
}

# Two hosts, which are network namespaces with a link between them.
left=sluice-ab-$$-l right=sluice-ab-$$-r hosts_mtu=none
make_hosts() { # mtu
    local host
    [[ $hosts_mtu != "$1" ]] || return 0
    if [[ $hosts_mtu == none ]]; then
        hosts_mtu=unknown
        ip netns add "$left" && ip netns add "$right" &&
            ip -n "$left" link add eth0 type veth peer name eth0 netns "$right" &&
            ip -n "$left" addr add 192.0.2.1/24 dev eth0 && ip -n "$right" addr add 192.0.2.2/24 dev eth0 || return
    fi
    for host in "$left" "$right"; do
        ip -n "$host" link set lo up && ip -n "$host" link set eth0 mtu "$1" up || return
    done
    hosts_mtu=$1
    sleep 1
}
remove_hosts() {
    [[ $hosts_mtu == none ]] || ip netns del "$left" 2>/dev/null || true
    [[ $hosts_mtu == none ]] || ip netns del "$right" 2>/dev/null || true
}

# The median latency, or the average rate.
perftest() { # device, mtu, program, arguments...
    local device=$1 mtu=$2 program=$3 on_server=() on_client=() address=localhost more=() words server
    shift 3
    if [[ $device != shm ]]; then
        make_hosts "$mtu" || { why='no network namespaces' && return 1; }
        # With -x 0 an address of IPv4, whatever its place is.
        on_server=(ip netns exec "$right") on_client=(ip netns exec "$left") address=192.0.2.2 more=(-x 0)
    fi
    words=("$build/sluice" verbs --device "$device" -- "$program" -F -p "$port" "${more[@]}" "$@")
    timeout -k 5 "$SECONDS_MAX" "${on_server[@]}" "${words[@]}" >"$work/server" 2>&1 &
    server=$!
    sleep 0.5
    client "${on_client[@]}" "${words[@]}" "$address" || return
    wait "$server" || true
    figure=$(awk -v is_latency="$([[ $program != *_lat ]] || echo 1)" '/^ *[0-9]+ +[0-9]+ / {
        value = is_latency || $1 <= 1024 ? $5 : $4 / 1024
    } END {print value}' "$work/client")
}
