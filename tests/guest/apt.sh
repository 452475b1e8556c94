# Sourced by the scripts beside it: Debian packages from apt's servers, with a sources list, package
# lists and an archive folder of their own. Nothing is installed, and apt's own lists and settings
# stay as they are. The caller sets `apt_home`, the folder for all of that, and has a `die`.

# Prints the server that this system gets its packages from.
apt_server() {
    local codename uri
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    uri=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
        'Origin: Debian' 'Identifier: Packages' 2>/dev/null |
        awk -v name="$codename" '$2 == name { print $1; exit }')
    [[ -n $uri ]] || die "apt has no source for Debian $codename"
    printf '%s\n' "$uri"
}

# As if nothing were installed, so that a package's dependencies come too.
bare_apt() {
    local tool=$1
    shift
    "$tool" -q -o Dir::Etc::sourcelist="$apt_home/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$apt_home/lists" -o Dir::State::status="$apt_home/status" \
        -o Dir::Cache="$apt_home/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none \
        -o Acquire::Retries=3 -o APT::Install-Recommends=false "$@"
}

# Reads the package lists of these suites.
apt_suites() {
    local key=/usr/share/keyrings/debian-archive-keyring.gpg uri suite
    [[ -f $key ]] || die "$key is missing (package debian-archive-keyring)"
    uri=$(apt_server)
    mkdir -p "$apt_home/lists/partial" "$apt_home/cache/archives/partial"
    : >"$apt_home/status"
    : >"$apt_home/sources.list"
    for suite; do
        printf 'deb [signed-by=%s] %s %s main\n' "$key" "$uri" "$suite" >>"$apt_home/sources.list"
    done
    bare_apt apt-get -o APT::Update::Error-Mode=any update >"$apt_home/log" 2>&1 ||
        die "cannot read the package lists of $*, see $apt_home/log"
}

# Downloads packages and all that they depend on, preferring this suite.
apt_fetch() { # suite, packages...
    local suite=$1
    shift
    bare_apt apt-get install -y -d -t "$suite" "$@" >>"$apt_home/log" 2>&1 ||
        die "cannot download $*, see $apt_home/log"
}
