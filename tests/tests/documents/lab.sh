#!/bin/bash
# A machine to run the documents' commands on:
#
#   unshare --mount --pid --fork --kill-child --net lab.sh SOURCE BUILT TALK.py STORY.sh DIR
#
# The root is the host's with a layer over it that is gone with this process; so is the repository, at /src, with the
# folder BUILT as its target/release. /tmp, /run and /dev are of its own. The story is a script of bash that runs
# there, with what stands in machine.sh; ends with "all good" if each of its commands did well.
set -euo pipefail
source=$1 built=$2 talk=$3 story=$4 dir=$5

. "${BASH_SOURCE[0]%/*}/../../src/own_root.sh"
layer src "$source" "$root/src"
mkdir -p "$root/src/target/release"
mount --bind "$built" "$root/src/target/release"
mkdir -p "$root/usr/local/bin"
cp "$talk" "$root/usr/local/bin/talk.py"
cat "${BASH_SOURCE[0]%/*}/machine.sh" "$story" >"$root/tmp/story"
ip link set lo up

env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    chroot "$root" bash -euo pipefail /tmp/story || fail "the story ended with $?"
printf 'all good\n'
