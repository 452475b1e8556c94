# What installs and removes in the root of own_root.sh: dpkg or rpm, as $kind says. Sourced.
#
# The host's dpkg knows what is there; rpm has a database of its own, which is empty, so that what packages depend on is not looked
# for. On Debian it wants to be asked twice. With $force_depends=--force-depends dpkg does not look either.

inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot "$root" "$@"; }
by_rpm() { inside rpm --dbpath /var/lib/rpm --nodeps --force-debian "$@"; }
logged() { # what, command...
    local what=$1
    shift
    "$@" >"$root/tmp/packager" 2>&1 || fail "$what: $(cat "$root/tmp/packager" "$root"/var/lib/dkms/*/*/build/make.log 2>/dev/null)"
}
install() { # name of a file in /tmp
    case $kind in
    deb) logged "$1" inside dpkg --install --force-downgrade ${force_depends:-} "/tmp/$1.deb" ;;
    rpm) logged "$1" by_rpm --upgrade --oldpackage --nosignature "/tmp/$1.rpm" ;;
    esac
    # Scripts of packages that fail are warnings to rpm.
    ! grep -i 'scriptlet failed' "$root/tmp/packager" || fail "$1: $(cat "$root/tmp/packager")"
}
remove() { # package
    case $kind in
    deb) logged "removal of $1" inside dpkg --remove "$1" ;;
    rpm) logged "removal of $1" by_rpm --erase "$1" ;;
    esac
    ! grep -i 'scriptlet failed' "$root/tmp/packager" || fail "$1: $(cat "$root/tmp/packager")"
}
purge() { # package
    logged "purge of $1" inside dpkg --purge "$1"
}
