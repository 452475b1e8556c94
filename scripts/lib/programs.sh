# The test programs of the workspace. Sourced by scripts/test.
#
# "cargo test -p PACKAGE" builds what a package needs with the features that this package asks for, so
# that each choice of packages compiles much of the others' again. Here the choice is always the whole
# workspace; cargo says which programs it has made, and they are run from here.

TAB=$'\t'
# What cargo knows as another compiler it compiles for anew: each step says the same one.
CLIPPY_RUSTC=$PWD/scripts/lib/clippy-rustc

# Builds all of them, or those that cargo's arguments choose, and writes a list with a line for each:
# folder, kind (lib, bin, test) and name of the target, path; with tabs between. What clippy has to say of the
# workspace is an error: the compiler that cargo is told to use is clippy's, so that nothing is read twice.
build_programs() { # list, arguments of cargo test...
    local list=$1
    shift
    RUSTC_WORKSPACE_WRAPPER=$CLIPPY_RUSTC \
        cargo test --workspace --no-run --message-format=json-render-diagnostics "$@" >"$list.json" ||
        return
    jq -r --arg root "$PWD/" '
        select(.reason == "compiler-artifact" and .profile.test and .executable != null)
        | [(.manifest_path | ltrimstr($root) | rtrimstr("/Cargo.toml")), .target.kind[0],
           .target.name, .executable]
        | @tsv' "$list.json" >"$list"
}

# Runs one as cargo does, in its package's folder. One that ends by itself says what failed (status 101); of another one it
# is said here how it ended.
run_program() { # seconds, folder, program, arguments...
    local seconds=$1 folder=$2 status=0
    shift 2
    (cd "$folder" && CARGO_MANIFEST_DIR=$PWD exec timeout --kill-after=10 "$seconds" "$@") || status=$?
    case $status in
    0 | 101) ;;
    124 | 137) printf '\nerror: %s did not end within %d s\n' "$1" "$seconds" ;;
    *) printf '\nerror: %s ended with status %d\n' "$1" "$status" ;;
    esac
    return "$status"
}

# Calls run_program and keeps a record in $LOGS/runs/$STEP: the output in NAME.log, and how the program was started and
# ended in NAME.run. tests/src/rerun reads the records to run failed tests again. Prints the output when the program has
# ended.
run_recorded() { # name of the record, seconds, folder, program, arguments...
    local record=$LOGS/runs/$STEP/$1 status=0
    shift
    mkdir -p "${record%/*}"
    run_program "$@" >"$record.log" 2>&1 || status=$?
    printf '%s %s\n' status "$status" seconds "$1" folder "$PWD/$2" program "$3" tmpdir "${TMPDIR:-}" \
        ended "$(date -Is)" load "$(</proc/loadavg)" >"$record.run"
    cat "$record.log"
    return "$status"
}

# Runs all of a list, two at a time, also those behind one that fails; what they say comes in the order of
# the list. Tests wait more than they work.
run_listed() { # list, seconds for each, arguments...
    local list=$1 seconds=$2 said=$1.said number=0 folder kind name program
    shift 2
    rm -rf "$said"
    mkdir "$said"
    while IFS=$TAB read -r folder kind name program <&3; do
        while (($(jobs -rp | wc -l) >= 2)); do
            sleep 0.1
        done
        number=$((number + 1))
        {
            printf '     Running %s %s of %s\n' "$kind" "$name" "$folder"
            run_recorded "$(printf '%04d' "$number")" "$seconds" "$folder" "$program" "$@" ||
                touch "$said/failed"
        } >"$said/$(printf '%04d' "$number")" 2>&1 3<&- &
    done 3<"$list"
    wait
    cat "$said"/[0-9]*
    [[ ! -e $said/failed ]]
}

# Builds and runs one of tests/tests.
run_suite() { # seconds, name, arguments...
    local seconds=$1 name=$2 program
    local list=$LOGS/$name.programs
    shift 2
    build_programs "$list" --test "$name" || return
    program=$(awk -F '\t' -v name="$name" '$1 == "tests" && $3 == name { print $4 }' "$list")
    run_recorded "$name" "$seconds" tests "$program" "$@"
}

# Prints the path of the program that runs failed tests again. Cargo builds it with every suite.
rerun_program() {
    cat "$LOGS"/*.programs.json | jq -rs '
        [.[] | select(.reason == "compiler-artifact" and .target.name == "rerun-failed"
            and (.profile.test | not) and .executable != null) | .executable]
        | last // empty'
}
