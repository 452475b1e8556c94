//! The processors and the processor time that there are, as the kernel's files say.

use crate::limits::Limits;

/// What is known. Without knowledge there are many processors, and all of their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Processors that are switched on, whoever may use them: a peer that shares memory runs on one of them.
    pub online: Option<u32>,
    /// The smallest quota of the groups that the process is in.
    pub quota: Option<Quota>,
}

impl Machine {
    /// Whether nobody else runs while one polls: then a yield is all that can bring what is waited for.
    pub fn is_single(&self) -> bool {
        self.online == Some(1)
    }

    /// The ceiling of a wait for which `ceiling_ns` is right where processors idle otherwise. Less than one processor's time
    /// does not last for a thread that polls: what it polls away is missing when there is work.
    pub fn ceiling_ns(&self, limits: &Limits, ceiling_ns: u64) -> u64 {
        match self.quota {
            Some(quota) if quota.is_less_than_one() => ceiling_ns.min(limits.oversubscribed_ns),
            _ => ceiling_ns,
        }
    }
}

/// So much processor time in each period (`cpu.max` in the kernel's `Documentation/admin-guide/cgroup-v2.rst`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    time_us: u64,
    period_us: u64,
}

impl Quota {
    /// Of a line of `cpu.max`: `$MAX $PERIOD`, microseconds. `None`: there is none ("max"), or it is not such a line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (time, period) = (words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let (time_us, period_us) = (time.parse().ok()?, period.parse().ok()?);
        (time_us > 0 && period_us > 0).then_some(Self { time_us, period_us })
    }

    /// The one that allows less.
    pub fn min(self, other: Self) -> Self {
        let share = |a: Self, b: Self| u128::from(a.time_us) * u128::from(b.period_us);
        if share(self, other) <= share(other, self) {
            self
        } else {
            other
        }
    }

    /// Whether it is used up by one thread that polls all the time.
    pub const fn is_less_than_one(self) -> bool {
        self.time_us < self.period_us
    }
}

/// The group of version 2 that a process is in: of `/proc/self/cgroup` the line `0::/path` (cgroups(7)).
pub fn group(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// How many numbers a list of ranges has, as `/sys/devices/system/cpu/online` does: "0-3,8".
pub fn count_list(ranges: &str) -> Option<u32> {
    ranges.trim().split(',').try_fold(0_u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LIMITS;

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("0-3,8,10-11\n"), Some(7));
        for strange in ["", "x", "3-1", "0-4294967295", "0-"] {
            assert_eq!(count_list(strange), None, "{strange}");
        }
        let groups = "12:cpu:/docker/1\n0::/kubepods.slice/pod1\n";
        assert_eq!(group(groups), Some("/kubepods.slice/pod1"));
        assert_eq!(group("12:cpu:/docker/1\n"), None);
        let quota = Quota::parse("50000 100000\n").unwrap();
        assert!(quota.is_less_than_one());
        assert!(!Quota::parse("100000 100000").unwrap().is_less_than_one());
        for none in [
            "max 100000",
            "",
            "50000",
            "50000 0",
            "0 100000",
            "-1 100000",
            "1 2 3",
            "99999999999999999999 1",
        ] {
            assert_eq!(Quota::parse(none), None, "{none}");
        }
    }

    #[test]
    fn of_several_quotas_the_smallest_counts() {
        let quota = |time_us, period_us| Quota { time_us, period_us };
        let (half, third) = (quota(50_000, 100_000), quota(10_000, 30_000));
        assert_eq!(half.min(third), third);
        assert_eq!(third.min(half), third);
        let huge = quota(u64::MAX, 1);
        assert_eq!(huge.min(half), half);
        assert_eq!(
            huge.min(quota(u64::MAX, u64::MAX)),
            quota(u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn less_than_a_processors_time_is_not_polled_away() {
        let with = |line| Machine {
            online: Some(2),
            quota: Quota::parse(line),
        };
        let ceiling = |line| with(line).ceiling_ns(&LIMITS, LIMITS.ceiling_ns);
        assert_eq!(ceiling("99999 100000"), LIMITS.oversubscribed_ns);
        assert_eq!(ceiling("100000 100000"), LIMITS.ceiling_ns);
        assert_eq!(ceiling("max 100000"), LIMITS.ceiling_ns);
        // Whoever polls less polls less.
        assert_eq!(with("1000 100000").ceiling_ns(&LIMITS, 3_000), 3_000);
        assert!(!with("max 1").is_single() && !Machine::default().is_single());
        let one = Machine {
            online: Some(1),
            quota: None,
        };
        assert!(one.is_single());
    }
}
