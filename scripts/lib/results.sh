# What the logs of "cargo test" say. Sourced by scripts/test; tests/tests/test_logs.rs tests it.
#
# A run prints, per test program, with --show-output also the part in brackets:
#
#   [successes:   ---- name stdout ---- …   successes:   the names that passed]
#   failures:     ---- name stdout ---- …   failures:    the names that failed
#   test result: …
#
# Every command here reads its input to the end: whoever writes into a pipe that head(1) has left
# is killed by SIGPIPE, which ends a script under "set -e" and pipefail in the middle of its report.

# The first so many lines.
first_lines() { # number
    sed -n "1,$1p"
}

# What each failed test said first.
first_words() { # log
    awk '/^successes:$|^test result:/ { failed = 0 }
         /^failures:$/ { failed = 1; left = 0 }
         !failed { next }
         /^---- .* ----$/ { left = 16 }
         left > 0 && NF { print "    " $0; left-- }' "$1" |
        first_lines 100
}

# The names of the failed tests, from the lists at the ends: what a test prints may stand between
# its name and "FAILED".
failed_names() { # log
    awk '/^successes:$/ { failed = 0 }
         /^failures:$/ { failed = 1; n = 0 }
         failed && /^    [^ ]/ { names[n++] = substr($0, 5) }
         /^test result:/ { for (i = 0; i < n; i++) print names[i]; failed = n = 0 }' "$1"
}

# How many programs did not come to the end of their tests (run_program says so).
count_unended() { # log
    grep -cE '^error: .* (did not end within|ended with status) [0-9]' "$1" || true
}

# Adds up the "test result: ok. 3 passed; 0 failed; …" lines.
count_results() { # passed|failed, log
    sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}
