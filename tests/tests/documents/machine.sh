# What stories have beside the programs of the machine.
cd /src
hash -r

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# As it is installed; stories that install it themselves take it away first.
packaging/container/stage target/release / >/dev/null
uninstall() { rm -rf /usr/bin/sluice /usr/bin/sluiced /usr/lib/sluice; }

await() { # what, command...
    local what=$1
    shift
    for _ in {1..2400}; do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.05
    done
    tail -n 20 /tmp/*.log >&2 || true
    fail "$what did not come about"
}
listens() { # port
    ss -Hltn "sport = :$1" | grep -q .
}

# A program with a connection to itself; 'talk' ends when all is said, 'talk-on' goes on until talk-end.
printf '#!/bin/sh\ntouch /tmp/go\nexec python3 /usr/local/bin/talk.py /tmp/half /tmp/go\n' >/usr/local/bin/talk
printf '#!/bin/sh\nexec python3 /usr/local/bin/talk.py /tmp/on.half /tmp/on.go\n' >/usr/local/bin/talk-on
chmod 755 /usr/local/bin/talk /usr/local/bin/talk-on

# Another machine, joined with this one by a cable: files are the same but those of /run, /tmp and /etc/sluice.
other=
two_hosts() { # address of this one, address of the other one
    unshare --mount --net sh -c 'mount -t tmpfs run /run; mount -t tmpfs tmp /tmp; mkdir -p /etc/sluice
        mount -t tmpfs -o mode=700 etc /etc/sluice; ip link set lo up; touch /run/there; exec sleep infinity' &
    other=$!
    await "the other host" on_other test -e /run/there
    ip link add eth0 type veth peer name eth0 netns "$other"
    ip address add "$1/24" dev eth0
    ip link set eth0 up
    on_other ip address add "$2/24" dev eth0
    on_other ip link set eth0 up
}
on_other() { nsenter --target "$other" --mount --net --root --wd=/src "$@"; }

# What systemd would run for sluiced.service, with the environment that its unit names.
run_unit() {
    bash -c 'for file in /etc/sluice/environment /etc/default/sluiced; do
            [[ -e $file ]] || continue
            while IFS="=" read -r name value; do [[ -z $value || $name == \#* ]] || export "$name=$value"; done <"$file"
        done
        mkdir -p /run/sluice
        eval "exec $(sed -n "s/^ExecStart=//p" /src/packaging/systemd/sluiced.service)"' -- "$@"
}

# A document's block of toml, by its number.
toml() { # document, number
    awk -v want="$2" '/^```toml/ { number++; inside = 1; next } /^```/ { inside = 0 } inside && number == want' "$1"
}
