//! Every number of the policy, in one table, with its reason.
//!
//! Functions take [`Limits`] as an argument, so that the model can ask what another value would do; everybody but tests
//! gives them [`LIMITS`], and the compiler sees constants. docs/waiting.md has the table as [`TABLE`] has it, which a test
//! holds.

use core::ops::RangeInclusive;

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The field's name; the unit is its end.
    pub name: &'static str,
    /// Who waits so: the heading of the table that the line is in.
    pub who: &'static str,
    /// Why it is so much.
    pub why: &'static str,
    /// Between which values the promises of `tests/model.rs` hold, each end tried there, if some value outside breaks
    /// one of them. Of all others the model says nothing.
    pub modelled: Option<RangeInclusive<u64>>,
    /// Reads the field.
    pub get: fn(&Limits) -> u64,
    /// Writes the field.
    pub set: fn(&mut Limits, u64),
}

macro_rules! modelled {
    () => {
        None
    };
    ($range:expr) => {
        Some($range)
    };
}

macro_rules! limits {
    ($( $who:literal { $( $( #[doc = $why:literal] )+ $name:ident = $value:literal $( , modelled $range:expr )? ; )+ } )+) => {
        /// The numbers. Nanoseconds unless the name says otherwise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Limits {
            $( $( $( #[doc = $why] )+ pub $name: u64, )+ )+
        }

        /// Those in force.
        pub const LIMITS: Limits = Limits { $( $( $name: $value, )+ )+ };

        /// All of them with their reasons.
        pub const TABLE: &[Row] = &[ $( $( Row {
            name: stringify!($name),
            who: $who,
            why: concat!($( $why ),+),
            modelled: modelled!($( $range )?),
            get: |limits| limits.$name,
            set: |limits, value| limits.$name = value,
        }, )+ )+ ];
    };
}

limits! {
    "One wait for a lane, poll or epoll" {
        /// The ceiling of one wait's polling when `SLUICE_SPIN_US` does not say: about two wake-ups of 45 µs. To poll
        /// longer than what it saves does not pay (decision 0004).
        ceiling_ns = 100_000, modelled 10_000..=100_000;
        /// The largest ceiling that can be asked for: a slip in the variable burns no more than that of a wait.
        ceiling_max_ns = 10_000_000;
        /// Looks without giving the processor away, at the start of a wait: the answer of a peer on another processor
        /// comes in this time (62 ns one way, and what the peer does; decision 0004).
        hard_ns = 8_000, modelled 1_000..=30_000;
        /// Looks from one look at the clock, which costs as much as one, to the next.
        looks_per_clock = 8, modelled 1..=64;
        /// A yield that takes this long let somebody else run; without a switch it takes 0.3 µs.
        yield_switch_ns = 1_500, modelled 600..=2_000;
        /// A yield that takes this long let somebody else run who did not give the processor back.
        yield_lost_ns = 50_000;
        /// Yields that lost the processor in one wait after which it is left to others: one is anybody's short turn.
        lost_max = 2, modelled 1..=4;
        /// A yield that takes this long waited for the slices of others that compute: who yields has given up the rest of
        /// its own (EEVDF), while who sleeps is let run soon after it was woken.
        yield_starved_ns = 1_000_000, modelled 600_000..=2_500_000;
        /// What a yield with a switch costs this thread and the one that it let run.
        switch_cost_ns = 1_500;
        /// The processor time that one wait may poll away while others want it, or where it is counted (a quota): then it is
        /// not the time of an idle processor, and what it is compared with is what a sleep costs both ends.
        oversubscribed_ns = 10_000, modelled 7_500..=10_000;
    }
    "Whether the next wait polls" {
        /// No gap counts for more ceilings than this, so that one pause is soon forgotten.
        gap_ceilings = 4, modelled 3..=16;
        /// The mean of the gaps is over about so many waits.
        gap_waits = 4, modelled 2..=8;
        /// The mean may be longer than a ceiling by one in so many parts of it: gaps about as long as that change sides
        /// otherwise with each of them.
        short_part = 2, modelled 2..=8;
        /// Waits that do not poll between two that try whether polling pays again, at first. Two ends that both sleep
        /// measure each other's wake-ups: one has to try first.
        pause_min = 4, modelled 2..=16;
        /// The same at most: what is polled in vain is one part in so many of what a wait costs.
        pause_max = 64;
        /// A thread whose reads by TCP get so many bytes between two waits does not poll in the second: what a wake-up costs
        /// is little beside them, and while it sleeps the kernel makes larger pieces of what comes (decision 0004).
        bulk_bytes = 32_768;
        /// The kernel copies so many bytes in a nanosecond at least: a call that took no longer than that and a yield
        /// found there what it took, and did not sleep.
        bytes_per_ns_copied = 2;
    }
    "Whether others want the processor" {
        /// What a yield that let somebody run adds, to a number from which one that did not takes 1.
        oversubscribed_step = 2, modelled 1..=4;
        /// From here on nobody polls hard.
        oversubscribed_from = 4, modelled 2..=8;
        /// The number never is more: so many yields that let nobody run and polling is hard again.
        oversubscribed_max = 8, modelled 8..=32;
        /// For so long nothing in a process polls behind a yield that was starved, at first; about three slices of others
        /// (decisions 0004 and 0023).
        off_min_ns = 10_000_000, modelled 5_000_000..=40_000_000;
        /// The same at most, since it doubles each time that it happens again soon.
        off_max_ns = 2_560_000_000, modelled 640_000_000..=10_000_000_000;
        /// Soon is so many times what it was the last time.
        off_soon = 4, modelled 2..=8;
    }
    "The kernel, for who waits for rings as well" {
        /// Time between looks at the kernel while polling. One takes 0.3 to 0.6 µs, so a tenth to a fifth of the polling
        /// goes there (decision 0007).
        kernel_look_ns = 3_000;
        /// One call of poll in so many asks the kernel even if rings know it all: a peer that was killed has not told them.
        kernel_turn = 16;
        /// Looks that follow one another at once where a sender is about to publish; some milliseconds. A local one takes a
        /// moment. sluiced, as the sender of a lane to another host, may have no link to that.
        awake_looks = 10_000;
        /// Time between later ones.
        awake_nap_ns = 1_000_000;
    }
    "A writer that finds the ring full" {
        /// It waits so many ceilings for room before it goes to TCP.
        full_ceilings = 2;
        /// The same at least, whatever the ceiling: a reader that was woken needs so long to begin.
        full_min_ns = 50_000;
        /// Moments of any wait that has its own end which are passed by looking hard, unless others want the processor.
        pass_hard_rounds = 50;
        /// Pauses of the processor in one such moment.
        pass_pauses = 32;
        /// In a blocking call it waits for so long while the reader takes something, and then sleeps in the kernel.
        patience_ns = 50_000_000;
        /// From here on it sleeps between looks, where signals and cancellation reach it, and minds the socket's timeout.
        patience_polling_ns = 1_000_000;
        /// Length of such a sleep: so short that the reader does not empty the ring meanwhile.
        patience_nap_ns = 50_000;
        /// Length of a sleep of a reader whose sender has stopped in the middle of a write. A signal or a cancellation is
        /// noticed at most this much late.
        slice_ns = 1_000_000;
    }
    "Locks of the library, and writers about to publish" {
        /// Polls of a record's lock before the processor is given away: it is held for a copy at most.
        lock_looks = 200;
        /// Times that it is given away before the owner is checked for life, which is a system call.
        lock_yields = 64;
        /// Polls of a lock of the process's own tables, which is held for less.
        table_lock_looks = 100;
        /// Looks at a writer between deciding and publishing, before it is asked whether it lives.
        writer_looks = 64;
        /// Those of them that do not give the processor away.
        writer_looks_hard = 8;
    }
    "A thread of a verbs transport" {
        /// What looking for the next packet may cost, in system calls that do nothing: to be put to sleep and woken costs some
        /// tens, and delays the packet by more (decision 0023).
        window_calls = 250;
        /// The same at least: on a machine whose calls take 80 ns and whose threads take 28 µs to be woken no packet came
        /// soon enough otherwise.
        window_min_ns = 50_000, modelled 25_000..=200_000;
        /// And at most.
        window_max_ns = 1_000_000;
        /// The window grows from this part of its longest, by doubling.
        window_part = 8;
        /// What yielding the processor to nobody may cost, in such calls.
        window_yield_calls = 10;
        /// The same at least.
        window_yield_min_ns = 3_000;
        /// Time between two moves to another processor: who is woken by packets stays on the processor of whoever sends them.
        move_ns = 2_000_000;
        /// After so many looks the thread lets others have the processor.
        yield_looks = 8;
        /// How long a watching thread waits, whom nobody wakes for what programs that poll will take.
        watch_ns = 1_000_000;
        /// Watches without traffic before it sleeps.
        quiet_watches = 4;
        /// What one look finds from which on more is expected soon, and it naps instead of listening (decision 0012).
        bulk_found = 12;
        /// Length of such a nap, about: the kernel may make it 50 µs longer.
        nap_ns = 20_000;
        /// How often it looks at a window where nobody can ring.
        unrung_ns = 1_000_000;
        /// And for messages of a host there that cannot ring.
        unrung_contact_ns = 5_000_000;
    }
    "sluiced, with lanes to other hosts" {
        /// Time between looks at the readers of all lanes while it polls (decision 0016).
        daemon_look_ns = 20_000;
        /// It polls on for so long after something moved, about four wake-ups: two ends are woken for an answer.
        daemon_busy_ns = 200_000;
        /// How long it polls to see whether a connection is lively.
        daemon_probe_ns = 2_000_000;
        /// Time between such probes, which doubles as long as they lead to nothing.
        daemon_probe_every_ns = 10_000_000;
        /// The same at most.
        daemon_probe_every_max_ns = 1_000_000_000;
        /// Between the look that finds lively connections and the probe it sleeps for so long: what readers take in
        /// that time says what a grant must move.
        daemon_measured_ns = 8_000_000;
        /// Time between its looks at how many threads of the machine want to run.
        daemon_oversubscribed_look_ns = 10_000_000;
        /// So many for each processor and the machine is oversubscribed: then each waits at least as long as it runs.
        daemon_oversubscribed_threads = 2;
    }
}

const _: () = {
    assert!(LIMITS.nap_ns < LIMITS.watch_ns);
    assert!(LIMITS.ceiling_ns <= LIMITS.ceiling_max_ns);
    // Sums of gaps are 32 bits wide.
    assert!(LIMITS.gap_ceilings * LIMITS.ceiling_max_ns <= u32::MAX as u64);
    assert!(LIMITS.pause_max <= 0xffff && LIMITS.pause_min <= LIMITS.pause_max);
    assert!(LIMITS.yield_switch_ns < LIMITS.yield_lost_ns);
    assert!(LIMITS.yield_lost_ns < LIMITS.yield_starved_ns);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;

    const DOCUMENT: &str = include_str!("../../../../docs/waiting.md");

    fn duration(name: &str, value: u64) -> String {
        match (name.ends_with("_ns"), value) {
            (true, ns) if ns % 1_000_000 == 0 => format!("{} ms", ns / 1_000_000),
            (true, ns) if ns % 100 == 0 => format!("{} µs", ns as f64 / 1_000.0),
            (true, ns) => format!("{ns} ns"),
            (false, value) => format!("{value}"),
        }
    }

    /// The tables as they are in the document.
    fn tables() -> String {
        let mut text = String::new();
        let mut who = "";
        for row in TABLE {
            if row.who != who {
                who = row.who;
                text +=
                    &format!("\n### {who}\n\n| limit | value | model | why |\n|---|---|---|---|\n");
            }
            let modelled = row.modelled.as_ref().map_or(String::new(), |range| {
                let (least, most) = (*range.start(), *range.end());
                format!(
                    "{} to {}",
                    duration(row.name, least),
                    duration(row.name, most)
                )
            });
            text += &format!(
                "| `{}` | {} | {modelled} | {} |\n",
                row.name,
                duration(row.name, (row.get)(&LIMITS)),
                row.why.trim()
            );
        }
        text
    }

    #[test]
    fn the_document_has_the_table() {
        let tables = tables();
        assert!(
            DOCUMENT.contains(&tables),
            "docs/waiting.md has not what the code has:\n{tables}"
        );
    }

    #[test]
    fn every_value_is_in_the_range_that_was_tried() {
        for row in TABLE {
            let value = (row.get)(&LIMITS);
            let is_within = row
                .modelled
                .as_ref()
                .is_none_or(|range| range.contains(&value));
            assert!(is_within, "{} is {value}", row.name);
        }
    }
}
