# needs: redis-server redis-benchmark nginx node curl java javac jar go ibv_devinfo ibv_rc_pingpong
# One guide after the other, as it stands there.
mkdir /tmp/guides
apps=/src/tests/apps
fenced() { # document, language: its first block of that kind
    awk -v fence="\`\`\`$2" '$0 == fence { inside = 1; next } /^```/ { if (inside) exit } inside' "$1"
}
has_lanes() { # file with a summary of --stats
    grep -Eq '[1-9][0-9]* on a lane' "$1"
}
# Where much else runs all may be said by TCP before there is a lane: what is said is said again.
until_lanes() { # file, command...
    local file=$1
    shift
    for _ in {1..20}; do
        "$@"
        ! has_lanes "$file" || return 0
    done
    fail "no lane: $(cat "$file")"
}

# Redis.
#: docs/guides.md
sluice run -- redis-server --port 6400 >/tmp/redis.log 2>&1 &
redis=$!
await "redis" listens 6400
benchmark() {
sluice run --stats -- redis-benchmark -p 6400 -t get,set -n 100000 -c 10 >/tmp/bench.log 2>/tmp/stats
}
until_lanes /tmp/stats benchmark
grep -q '====== GET ======' /tmp/bench.log || fail "$(cat /tmp/bench.log)"
kill $redis

# nginx. Its own page for port 80 is not what is asked for here.
cd /tmp/guides
cat >app.js <<'APP'
require("http").createServer((request, answer) => answer.end("by node " + request.url)).listen(8081, "127.0.0.1");
APP
fenced /src/docs/guides.md nginx >app.conf
grep -q keepalive app.conf || fail "no configuration of nginx in the guide"
printf 'error_log /tmp/nginx.log; pid /tmp/nginx.pid; events {}\nhttp { access_log off; include /tmp/guides/app.conf; }\n' >/etc/nginx/nginx.conf
#: docs/guides.md
sluice up --system
sluice run -- node app.js >/tmp/node.log 2>&1 &
node=$!
await "node" listens 8081
sluice run -- nginx
await "nginx" listens 8080
is_carried() {
    curl --fail --silent --show-error 'http://127.0.0.1:8080/[1-50]' >/tmp/answers
    [[ $(grep -o 'by node' /tmp/answers | wc -l) == 50 ]] || fail "$(cat /tmp/answers /tmp/nginx.log)"
    sluice status >/tmp/status
    grep ':8081' /tmp/status | grep -q lane
}
await "a lane between nginx and node" is_carried
kill "$(cat /tmp/nginx.pid)" $node
sluice down --system

# Java, and Go: the tests' echo, which wants words that the guide's programs do not.
port_of() { # file
    await "a port in $1" grep -q '^port ' "$1"
    awk '$1 == "port" { print $2; exit }' "$1"
}
mkdir java go
cd java
cat >Server.java <<'JAVA'
class Server { public static void main(String[] none) throws Exception { Echo.main(new String[] {"server"}); } }
JAVA
cat >Client.java <<'JAVA'
class Client { public static void main(String[] none) throws Exception { Echo.main(new String[] {"client", System.getenv("PORT")}); } }
JAVA
javac -d . $apps/scripts/Echo.java Server.java Client.java
jar --create --file server.jar --main-class Server ./*.class
jar --create --file client.jar --main-class Client ./*.class
#: docs/guides.md
sluice run -- java -jar server.jar >/tmp/java.log 2>&1 &
java=$!
export PORT
PORT=$(port_of /tmp/java.log)
sluice run -- java -jar client.jar >/tmp/java.sum
grep -q '^sum ' /tmp/java.sum || fail "$(cat /tmp/java.sum)"
client() { sluice run --stats -- java -jar client.jar >/tmp/java.sum 2>/tmp/stats; }
until_lanes /tmp/stats client
kill $java

cd ../go
PATH=$PATH:/usr/local/go/bin
export GOCACHE=/tmp/guides/cache GO111MODULE=off CGO_ENABLED=0
printf 'package main\nimport "os"\nfunc init() { os.Args = []string{"echo", "server"} }\n' >server.go
printf 'package main\nimport "os"\nfunc init() { os.Args = []string{"echo", "client", os.Getenv("PORT")} }\n' >client.go
cp $apps/go/echo.go .
go build -o server echo.go server.go
go build -o client echo.go client.go
#: docs/guides.md
sluice run --static -- ./server >/tmp/go.log 2>&1 &
go=$!
PORT=$(port_of /tmp/go.log)
sluice run --static -- ./client >/tmp/go.sum
cmp /tmp/go.sum /tmp/java.sum
client() { sluice run --static --stats -- ./client >/tmp/go.sum 2>/tmp/stats; }
until_lanes /tmp/stats client
kill $go

# Verbs programs, as a test of somebody's would start them. RoCE wants an interface beside lo.
two_hosts 10.0.0.1 10.0.0.2
cd /tmp/guides
cat >test <<'TEST'
#!/bin/bash -e
ibv_rc_pingpong -g 0 -p 7501 -n 200 >/tmp/pong 2>&1 &
for _ in {1..2400}; do ss -Hltn 'sport = :7501' | grep -q . && break; sleep 0.05; done
ibv_rc_pingpong -g 0 -p 7501 -n 200 127.0.0.1 >/tmp/ping 2>&1 && wait $! && grep '200 iters' /tmp/ping && exit
kill $! 2>/dev/null || true
cat /tmp/ping /tmp/pong
exit 1
TEST
chmod 755 test
#: docs/guides.md
sluice verbs -- ibv_devinfo >/tmp/devinfo
grep -q 'sluice0' /tmp/devinfo || fail "$(cat /tmp/devinfo)"
sluice verbs -- ./test >/tmp/verbs.log
faulty() {
sluice verbs --device roce --fault loss=0.01,dup=0.01,seed=7 -- ./test >/tmp/verbs.log
}
# It cannot be told to be more patient with a peer that gets no processor for half a second.
for _ in {1..4}; do
    ! faulty || break
    grep -q 'transport retry counter exceeded' /tmp/verbs.log || fail "$(cat /tmp/verbs.log)"
done
grep -q '200 iters' /tmp/verbs.log || fail "$(cat /tmp/verbs.log)"
