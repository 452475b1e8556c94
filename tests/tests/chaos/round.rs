//! One round: its programs run, are hurt, and are judged.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use sluice_tests::job::{Job, wait_until};
use sluice_tests::random::Random;
use sluice_tests::suite::{Verdict, ensure};

use crate::plan::{Plan, Program};
use crate::processes::{CLIENT, Processes};
use crate::report::Report;
use crate::stages::Stage;
use crate::state::{Connection, State};

/// Between two looks at the round.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// A look that comes later than this counts as this: the machine stood still, and not the round.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// After a violation, for others of the same cause.
const AFTERWARDS: Duration = Duration::from_millis(50);
/// For programs that have left the round.
const END_LIMIT: Duration = Duration::from_secs(120);

pub struct Round<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub state: State,
    pub processes: Processes,
    pub begin_ns: u64,
    begin: Instant,
    /// The server, then the clients.
    jobs: Vec<Job>,
    troubles: Troubles,
    pub found: Vec<String>,
}

/// When what is done to the round comes next, and how often it was.
#[derive(Debug, Default)]
struct Troubles {
    stopped: Option<usize>,
    stop_at: Duration,
    go_on_at: Duration,
    kill_at: Duration,
    daemon_at: Duration,
    stops: u32,
    kills: u32,
    daemons: u32,
    signals: u32,
}

const KILLS_MAX: u32 = 2;
const DAEMON_KILLS_MAX: u32 = 2;

fn ms(random: &mut Random, limit: u64) -> Duration {
    Duration::from_millis(random.below(limit))
}

/// Runs a round to its end.
pub fn run(stage: &mut dyn Stage, program: &Program, plan: &Plan, number: u32) -> Verdict<Report> {
    stage.prepare()?;
    let mut random = Random::new(plan.seed);
    let head = plan.head(&mut random, program.allowed);
    let path = stage.dir().join("state");
    let state = State::create(&path, &head)?;
    let meeting = stage.meeting();
    let now = clock_gettime(ClockId::Monotonic);
    let mut round = Round {
        plan,
        program,
        state,
        processes: Processes::new(&program.path),
        begin_ns: (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64,
        begin: Instant::now(),
        jobs: Vec::new(),
        troubles: Troubles {
            stop_at: ms(&mut random, 300),
            kill_at: Duration::from_millis(20) + ms(&mut random, 700),
            daemon_at: Duration::from_millis(100) + ms(&mut random, 500),
            ..Troubles::default()
        },
        found: Vec::new(),
    };
    let mut server = stage.server(&program.path);
    server.arg("server").arg(&path);
    server.arg(&meeting.listen).arg(meeting.port.to_string());
    let label = |what: &str| format!("chaos-{number}-{what}");
    round
        .jobs
        .push(Job::start(server, stage.dir(), &label("server"))?);
    round.jobs[0].await_ready(END_LIMIT, "port", || {
        stage.is_open(round.state.port().unwrap_or(0))
    })?;
    for client in 0..head.clients {
        let mut command = stage.client(&program.path);
        command.arg("client").arg(&path).arg(client.to_string());
        command.arg(&meeting.connect).arg(meeting.port.to_string());
        let job = Job::start(command, stage.dir(), &label(&format!("client-{client}")))?;
        round.jobs.push(job);
    }
    let is_over = round.go_on(stage, &mut random)?;
    round.judge(stage, is_over)
}

impl Round<'_> {
    /// Hurts the programs until they have ended (true), or until nothing happens any more or something is wrong.
    fn go_on(&mut self, stage: &mut dyn Stage, random: &mut Random) -> Verdict<bool> {
        let mut progress = 0;
        let mut still = Duration::ZERO;
        let mut looked = Instant::now();
        loop {
            self.processes.look(&self.state)?;
            let connections = self.state.connections()?;
            if self.is_over(&connections) {
                return Ok(true);
            }
            self.find_crash();
            if !self.found.is_empty() || !self.state.violations()?.is_empty() {
                self.let_go_on();
                thread::sleep(AFTERWARDS);
                return Ok(false);
            }
            let now = self.progress(&connections);
            still += looked.elapsed().min(LOOK_MAX);
            looked = Instant::now();
            if now != progress {
                still = Duration::ZERO;
            }
            progress = now;
            if still > self.plan.patience {
                let seconds = self.plan.patience.as_secs();
                self.found.push(format!(
                    "HANG: no process has sent, received, begun or ended anything for {seconds} s"
                ));
                self.let_go_on();
                return Ok(false);
            }
            self.hurt(stage, random)?;
            let pause = if self.plan.faults.signals {
                Duration::from_micros(200 + random.below(800))
            } else {
                LOOK_AGAIN
            };
            thread::sleep(pause);
        }
    }

    /// A number that changes whenever a process gets on.
    fn progress(&self, connections: &[Connection]) -> u64 {
        let mut sum = 0;
        for connection in connections {
            let [client, server] = connection.is_started.map(u64::from);
            sum += client + server;
            for it in &connection.directions {
                let flags = [it.is_fin, it.is_eof, it.sender_ended, it.receiver_ended];
                sum += it.sent + it.received + flags.into_iter().map(u64::from).sum::<u64>();
            }
        }
        let all = &self.processes.all;
        let ended = all.len() - self.processes.live().len();
        let left = all.iter().filter(|process| process.is_done).count();
        sum + (all.len() + ended + left) as u64
    }

    fn have_all_begun(&self) -> bool {
        let begun = self.processes.all.iter().filter(|it| it.kind <= CLIENT);
        begun.count() >= self.jobs.len()
    }

    fn is_over(&self, connections: &[Connection]) -> bool {
        if !self.have_all_begun() || !self.processes.live().is_empty() {
            return false;
        }
        // A child whose parent was killed may not have joined yet.
        let mut directions = connections.iter().flat_map(|it| it.directions);
        !directions.any(|it| {
            let lives = |pid| self.processes.is_unknown_and_lives(pid);
            (!it.sender_ended && lives(it.sender)) || (!it.receiver_ended && lives(it.receiver))
        })
    }

    /// Who ends must have said so, or have been killed.
    fn find_crash(&mut self) {
        for (place, process) in self.processes.all.iter().enumerate() {
            if self.processes.is_alive(place) || process.is_done || process.is_killed {
                continue;
            }
            // It may have said so since the last look.
            let now = self.state.processes().unwrap_or_default();
            if now.get(place).is_some_and(|it| !it.is_done) {
                self.found.push(format!(
                    "CRASH: process {} ended without a word",
                    process.pid
                ));
            }
        }
    }

    fn let_go_on(&mut self) {
        if let Some(place) = self.troubles.stopped.take() {
            self.processes.signal(place, Signal::CONT);
        }
    }

    fn hurt(&mut self, stage: &mut dyn Stage, random: &mut Random) -> Verdict {
        let faults = self.plan.faults;
        let now = self.begin.elapsed();
        if self.troubles.stopped.is_some() && now > self.troubles.go_on_at {
            self.let_go_on();
        }
        let victims = self.processes.victims();
        if victims.is_empty() {
            return Ok(());
        }
        let mut one = || victims[random.below(victims.len() as u64) as usize];
        let (stop, kill, interrupted) = (one(), one(), one());
        if faults.stops && self.troubles.stopped.is_none() && now > self.troubles.stop_at {
            self.processes.signal(stop, Signal::STOP);
            self.troubles.stopped = Some(stop);
            self.troubles.stops += 1;
            self.troubles.go_on_at = now + ms(random, 300);
            self.troubles.stop_at = self.troubles.go_on_at + ms(random, 400);
        }
        if faults.kills && self.troubles.kills < KILLS_MAX && now > self.troubles.kill_at {
            self.state.mark_killed(kill)?;
            self.processes.signal(kill, Signal::KILL);
            self.troubles.kills += 1;
            self.troubles.kill_at = now + ms(random, 1000);
        }
        if faults.signals {
            self.processes.signal(interrupted, Signal::USR1);
            self.troubles.signals += 1;
        }
        let daemons = self.troubles.daemons;
        // `sluice run` starts a daemon where it finds none.
        if faults.daemon
            && self.have_all_begun()
            && daemons < DAEMON_KILLS_MAX
            && now > self.troubles.daemon_at
        {
            self.let_go_on();
            if stage.cuts_with_daemon() {
                self.cut_all()?;
            }
            stage.hurt_daemon(random)?;
            self.troubles.daemons += 1;
            self.troubles.daemon_at = self.begin.elapsed() + ms(random, 1000);
        }
        Ok(())
    }

    /// Every connection may break from now on.
    fn cut_all(&self) -> io::Result<()> {
        let why = self.program.number("reset");
        for number in 0..self.state.connections()?.len() {
            self.state.cut(number, why)?;
        }
        Ok(())
    }

    /// Whether a connection may have ended early; as the programs' `is_cut`.
    pub fn is_cut(&self, number: usize, connection: &Connection, clients: u64) -> bool {
        let killed = |pid| self.processes.is_killed(pid);
        let by_holder = connection.directions.iter().any(|it| {
            (!it.sender_ended && killed(it.sender)) || (!it.receiver_ended && killed(it.receiver))
        });
        let [client, server] = connection.is_started;
        let client_number = number as u64 % clients.max(1);
        connection.cut != 0
            || by_holder
            || (!client && self.processes.is_program_killed(CLIENT, client_number))
            || (!server && self.processes.is_program_killed(CLIENT - 1, 0))
    }

    fn judge(mut self, stage: &dyn Stage, is_over: bool) -> Verdict<Report> {
        self.processes.look(&self.state)?;
        let connections = self.state.connections()?;
        let clients = self.jobs.len() as u64 - 1;
        self.find_crash();
        self.found.extend(self.state.violations()?);
        let mut cut = 0;
        for (number, connection) in connections.iter().enumerate() {
            if self.is_cut(number, connection, clients) {
                cut += 1;
                continue;
            }
            for (direction, it) in connection.directions.iter().enumerate() {
                let is_whole = it.is_fin && it.is_eof && [it.sent, it.received] == [it.total; 2];
                if is_over && self.found.is_empty() && !is_whole {
                    self.found.push(format!(
                        "END: connection {number} direction {direction}: {it:?}"
                    ));
                }
            }
        }
        let troubles = &self.troubles;
        let bytes: u64 = connections
            .iter()
            .flat_map(|it| it.directions)
            .map(|it| it.received)
            .sum();
        let summary = format!(
            "seed {} {}: {} connections, {cut} cut, {bytes} bytes, {} ms; {} killed, {} stopped, \
             {} daemons killed, {} signals",
            self.plan.seed,
            self.plan.faults,
            connections.len(),
            self.begin.elapsed().as_millis(),
            troubles.kills,
            troubles.stops,
            troubles.daemons,
            troubles.signals,
        );
        let details = if self.found.is_empty() {
            String::new()
        } else {
            let jobs: Vec<String> = self.jobs.iter().map(Job::describe).collect();
            self.details(&connections) + &jobs.join("\n") + &stage.describe()
        };
        let report = Report {
            summary,
            found: self.found.clone(),
            details,
            counts: self.state.counts()?,
            is_mutated: self.state.is_mutated()?,
        };
        self.end(report.found.is_empty())?;
        Ok(report)
    }

    /// Ends what is left. Programs of a good round end by themselves.
    fn end(mut self, is_good: bool) -> Verdict {
        self.state.end()?;
        for place in self.processes.live() {
            self.processes.signal(place, Signal::KILL);
        }
        for mut job in self.jobs.drain(..).filter(|_| is_good) {
            let mut status = None;
            wait_until(END_LIMIT, || {
                status = job.poll()?;
                Ok(status.is_some())
            })?;
            let is_killed = self.processes.is_killed(job.id().into());
            let is_well = is_killed || status.is_some_and(|status| status.success());
            ensure(is_well, || format!("{status:?}: {}", job.describe()))?;
            job.forget_output();
        }
        Ok(())
    }
}
