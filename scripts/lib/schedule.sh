# Runs steps side by side, and says how each ended in an order that never changes. Sourced by
# scripts/test, behind leftovers.sh; tests/tests/test_steps.rs tests it.
#
# A step is run by the command that is given, with its name, in a session of its own. What it prints
# goes to $LOGS/STEP.report, and its last line is "counts PASSED FAILED SKIPPED".
#
# The tables say what may be beside what:
declare -A AFTER=()  # steps that must have ended before this one begins
declare -A WEIGHT=() # how many processors a step keeps busy; one if it is not said

# The number of each step that runs now.
declare -A running=()
# The number that was noted there last.
noted=

# Steps that run end with this script, however it ends.
end_running() {
    local number numbers=("${running[@]}")
    # A signal may come when one has begun and is not noted yet.
    if [[ ${!:-} != "$noted" ]]; then
        numbers+=("$!")
        kill -TERM "$!" 2>/dev/null || true
    fi
    for number in "${numbers[@]}"; do
        pkill -TERM -s "$number" || true
    done
    ((${#numbers[@]} == 0)) || sleep 1
    for number in "${numbers[@]}"; do
        pkill -KILL -s "$number" || true
    done
}

have_a_word_in_common() { # words, words
    local one
    for one in $1; do
        [[ " $2 " == *" $one "* ]] && return
    done
    return 1
}

# A step that wants more processors than there are begins when it is alone.
may_begin() { # processors, step, steps that have not ended...
    local processors=$1 step=$2 other busy
    shift 2
    have_a_word_in_common "${AFTER[$step]:-}" "$*" && return 1
    ((${#running[@]} > 0)) || return 0
    busy=${WEIGHT[$step]:-1}
    for other in "${!running[@]}"; do
        busy=$((busy + ${WEIGHT[$other]:-1}))
    done
    ((busy <= processors))
}

# Runs all, so many at once and no more than the processors can do; the first that may begin does. Prints the
# reports in the order of the second list and adds to passed, failed and skipped.
side_by_side() { # at once, processors, command, names of two lists of the same steps
    local at_once=$1 processors=$2 command=$3
    local -n to_begin=$4 to_report=$5
    local waiting=("${to_begin[@]}") left=("${to_begin[@]}") unreported=("${to_report[@]}")
    local step
    while ((${#left[@]} > 0)); do
        for step in "${waiting[@]}"; do
            ((${#running[@]} < at_once)) || break
            may_begin "$processors" "$step" "${left[@]}" || continue
            note_leftovers "${!running[@]}"
            env "$(step_mark "$step")" setsid "$command" --inside "$step" >"$LOGS/$step.report" 2>&1 </dev/null &
            running[$step]=$!
            noted=$!
            without waiting "$step"
        done
        if ((${#running[@]} == 0)); then
            printf 'test: each of these waits for another: %s\n' "${waiting[*]}" >&2
            return 1
        fi
        # "wait -n" forgets what ended while another one was reported.
        sleep 0.2
        for step in "${!running[@]}"; do
            kill -0 "${running[$step]}" 2>/dev/null && continue
            note_leftovers "${!running[@]}"
            unset "running[$step]"
            without left "$step"
        done
        while ((${#unreported[@]} > 0)); do
            step=${unreported[0]}
            [[ " ${left[*]} " != *" $step "* ]] || break
            report "$step"
            unreported=("${unreported[@]:1}")
        done
    done
}

without() { # name of a list, word
    local -n list=$1
    local word kept=()
    for word in "${list[@]}"; do
        [[ $word == "$2" ]] || kept+=("$word")
    done
    list=("${kept[@]}")
}

# What a step has printed; one that has not come to its counts has failed.
report() { # step
    local word p=0 f=1 s=0
    sed '/^counts [0-9]* [0-9]* [0-9]*$/d' "$LOGS/$1.report"
    if ! read -r word p f s < <(grep '^counts [0-9]* [0-9]* [0-9]*$' "$LOGS/$1.report"); then
        p=0 f=1 s=0
        printf 'FAIL %s: the step did not come to its end\n' "$1"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
