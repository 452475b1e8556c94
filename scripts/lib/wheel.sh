# A program that its makers, or others, put on PyPI as a wheel. Sourced; `die` and TARGET are the script's.

# Prints where a program is: what a variable names, what PATH has, what was fetched before, or what the
# wheel brings, which is taken by its check sums.
program_of_wheel() { # program, value of its variable, requirement with check sums, what else to do
    local program=$1 tools=$TARGET/tools found
    for found in "$2" "$(command -v "$program" || true)" "$tools/bin/$program"; do
        if [[ -x $found ]]; then
            printf '%s\n' "$found"
            return
        fi
    done
    # Two of us may do this at once.
    mkdir -p "$tools/bin"
    found=$(mktemp -d "$tools/new.XXXXXX")
    printf '%s\n' "$3" >"$found/wheel"
    if ! python3 -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes \
        --root-user-action ignore --target "$found" --requirement "$found/wheel" >&2; then
        rm -rf "$found"
        die "$program is missing and pip does not get it: $4"
    fi
    mv -f "$found/bin/$program" "$tools/bin/$program"
    rm -rf "$found"
    printf '%s\n' "$tools/bin/$program"
}
