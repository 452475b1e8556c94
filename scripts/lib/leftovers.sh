# What steps leave behind when they have ended: processes, network namespaces and devices, mounts, cgroups and files.
# Sourced by scripts/test; tests/tests/test_leftovers.rs tests it.
#
# A step's processes have the variable SLUICE_TEST_STEP ("NUMBER STEP", with the number of this script's process) in
# their environment, however far they have forked. Some servers overwrite their environment with a title; these are
# known by a working directory or an open file below $TMPDIR, which is this run's own, and have no terminal. Nothing
# else says who made it: whatever appears while steps run is theirs.

# Each thing that a step may leave behind, with the steps that ran when it appeared.
declare -A left_by=()
# What was there before the first step.
declare -A there_before=()

# The variable by which the processes of a step are known.
step_mark() { # step
    printf 'SLUICE_TEST_STEP=%d %s' "$$" "$1"
}

# One line for each process of a step: number, when it began (in ticks, proc_pid_stat(5) field 22), name, and the step
# if its environment says so; with tabs between.
processes_of_steps() {
    local number step name rest stat
    {
        grep -saz "^SLUICE_TEST_STEP=$$ " /proc/[0-9]*/environ | tr '\0' '\n' |
            sed -nE "s|^/proc/([0-9]+)/environ:SLUICE_TEST_STEP=$$ (.*)|\1 \2|p"
        if [[ -n ${TMPDIR:-} && ${TMPDIR:-} == "${scratch:-}" ]]; then
            find /proc/[0-9]*/cwd /proc/[0-9]*/fd -maxdepth 1 \( -lname "$TMPDIR" -o -lname "$TMPDIR/*" \) 2>/dev/null |
                sed -E 's|^/proc/([0-9]+)/.*|\1|'
        fi
    } | sort -n -k 1,1 -k 2,2r | awk '$1 != before { print; before = $1 }' |
        while read -r number step; do
            stat=$(cat "/proc/$number/stat" 2>/dev/null) || continue
            name=${stat#*(} name=${name%)*} rest=${stat##*) }
            read -ra rest <<<"$rest"
            # Whoever looks at the files has a terminal.
            [[ -n $step || ${rest[4]} == 0 ]] || continue
            printf '%s\t%s\t%s\t%s\n' "$number" "${rest[19]}" "$name" "$step"
        done
}

# One line for each thing that a step can leave behind: its kind, what it is, and the step if that is known; with tabs
# between. Things may vanish while they are listed: its status says nothing.
what_is_there() {
    local number began name step
    while IFS=$'\t' read -r number began name step; do
        printf 'process\t%d %s (began at %d)\t%s\n' "$number" "$name" "$began" "$step"
    done < <(processes_of_steps || true)
    readlink /proc/[0-9]*/ns/net 2>/dev/null | sort -u | sed 's/^/network namespace\t/'
    printf 'network device\t%s\n' /sys/class/net/*
    awk '{ print "mount\t" $2 " (" $3 ")" }' /proc/self/mounts
    awk '$3 ~ /^cgroup/ { print $2 }' /proc/self/mounts |
        xargs -r -I{} find {} -mindepth 1 -type d -printf 'cgroup\t%p\n' 2>/dev/null
    find /dev/shm /run/netns /tmp "${TMPDIR:-/tmp}" -mindepth 1 -maxdepth 1 -printf 'file\t%p\n' 2>/dev/null
    find "/tmp/sluice-$UID" /run/sluice "${XDG_RUNTIME_DIR:-/run/user/$UID}" -mindepth 1 -printf 'file\t%p\n' 2>/dev/null
}

remember_what_is_there() {
    local kind what step
    while IFS=$'\t' read -r kind what step; do
        there_before[$kind$'\t'$what]=1
    done < <(what_is_there || true)
}

# What is new since the last call is left to the steps that are named, until it has gone.
note_leftovers() { # steps that run, or ran until now
    local kind what step item names
    local -A now=()
    names=$(printf '%s\n' "$@" | sort | paste -sd '|' | sed 's/|/ or /g')
    while IFS=$'\t' read -r kind what step; do
        item=$kind$'\t'$what
        [[ -z ${there_before[$item]:-} ]] || continue
        now[$item]=${step:-${left_by[$item]:-$names}}
    done < <(what_is_there || true)
    left_by=()
    for item in "${!now[@]}"; do
        left_by[$item]=${now[$item]}
    done
}

# Processes may still be about to end when their step has ended.
await_processes() { # seconds
    local until=$((SECONDS + $1))
    while ((SECONDS < until)) && [[ -n $(processes_of_steps) ]]; do
        sleep 0.1
    done
}

# Says what is left behind when all steps have ended, and adds it to the records of unsteady tests.
report_leftovers() { # file of the records, commit
    local records=$1 commit=$2 step lines item
    local -A steps=()
    await_processes 10
    note_leftovers "an unknown step"
    for item in "${!left_by[@]}"; do
        steps[${left_by[$item]}]+=$item$'\n'
    done
    while read -r step; do
        [[ -n $step ]] || continue
        lines=$(printf '%s' "${steps[$step]}" | sort | tr '\t' ' ')
        printf 'LEFT BEHIND by %s:\n' "$step"
        first_lines 20 <<<"$lines" | sed 's/^/    /'
        [[ -s $records ]] || printf '[]' >"$records"
        jq --arg name "left behind" --arg step "$step" --arg commit "$commit" --arg ended "$(date -Is)" \
            --arg load "$(</proc/loadavg)" --arg message "$lines" \
            '. + [$ARGS.named]' "$records" >"$records.new" && mv "$records.new" "$records"
    done < <(printf '%s\n' "${!steps[@]}" | sort)
}

# Ends the processes that steps have left behind; nobody else would.
end_leftovers() {
    local number began name step
    while IFS=$'\t' read -r number began name step; do
        kill -KILL "$number" 2>/dev/null || true
    done < <(processes_of_steps || true)
}
