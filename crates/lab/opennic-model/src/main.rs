//! `opennic-model`: serves a card to virtual machines.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Instant;

use clap::Parser;
use opennic_model::card::{Card, Wire};
use opennic_model::faults::Faults;
use opennic_model::generator::{Generator, Plan};
use opennic_model::tap::Tap;
use opennic_model::vfio_user::{Endpoint, Machine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Serve AMD's OpenNIC shell as vfio-user PCI devices, for QEMU 11 and newer.
///
/// Each function of the card is a socket: `-device '{"driver":"vfio-user-pci","socket":
/// {"type":"unix","path":"PATH"}}'`. The machine's memory must be shared and unable to shrink:
/// `-object memory-backend-memfd,id=ram,size=SIZE,share=on -machine memory-backend=ram`.
///
/// Lines on standard input: `link PORT up|down` pulls a cable and plugs it in, `counts` prints what
/// was made, dropped and lost. Every line gets one in answer.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The function's socket, which must not exist; once for each function.
    #[arg(long, required = true, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// What the function's port is plugged into, in the order of the sockets: `open`, `loop`,
    /// `other` (the card's other port), `tap:NAME`, or `gen:BYTES,FLOWS,COUNT` (frames out of
    /// nothing, COUNT 0 without end, never more than the guest has buffers for)
    #[arg(long, value_name = "WIRE")]
    port: Vec<Plug>,
    /// Say of every Nth received frame that it is bad
    #[arg(long, value_name = "N", default_value_t = 0)]
    bad_completion: u32,
    /// Lose every Nth interrupt of a queue
    #[arg(long, value_name = "N", default_value_t = 0)]
    lost_interrupt: u32,
    /// Lose every Nth received frame
    #[arg(long, value_name = "N", default_value_t = 0)]
    lost_packet: u32,
    /// Say that frames were sent only so many rounds of the model later
    #[arg(long, value_name = "ROUNDS", default_value_t = 0)]
    late_completion: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Plug {
    Open,
    Loop,
    Other,
    Tap(String),
    Generator(Plan),
}

impl FromStr for Plug {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "open" => return Ok(Self::Open),
            "loop" => return Ok(Self::Loop),
            "other" => return Ok(Self::Other),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("tap:") {
            return Ok(Self::Tap(name.into()));
        }
        let usage =
            || format!("'{text}' is not open, loop, other, tap:NAME or gen:BYTES,FLOWS,COUNT");
        let numbers = text.strip_prefix("gen:").ok_or_else(usage)?;
        let mut numbers = numbers.split(',');
        let mut next = || numbers.next().ok_or_else(usage);
        let plan = Plan {
            len: next()?.parse().map_err(|_| usage())?,
            flows: next()?.parse().map_err(|_| usage())?,
            count: next()?.parse().map_err(|_| usage())?,
        };
        Ok(Self::Generator(plan))
    }
}

impl Plug {
    fn wire(self, port: usize) -> io::Result<Wire> {
        Ok(match self {
            Self::Open => Wire::Open,
            Self::Loop => Wire::Loop,
            Self::Other => Wire::Other,
            Self::Tap(name) => Wire::Tap(Tap::open(&name)?),
            Self::Generator(plan) => Wire::Generator(Generator::new(plan, port as u8)),
        })
    }
}

/// Rounds of a busy card between two looks at the sockets.
const ROUNDS: u32 = 32;
/// How long the card looks for doorbells without a pause after the last one, ns.
const SPIN_NS: u64 = 200_000;
/// A guest that writes a doorbell wakes nobody, so an idle card looks this often, ns.
const PAUSE_NS: i64 = 100_000;
/// Without a guest there are no doorbells, ns.
const PAUSE_ALONE_NS: i64 = 50_000_000;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("opennic-model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> io::Result<()> {
    let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text);
    let count = arguments.socket.len();
    if arguments.port.len() > count {
        return Err(invalid("more ports than sockets"));
    }
    if count == 1 && arguments.port.contains(&Plug::Other) {
        return Err(invalid("the card has no other port"));
    }
    let mut plugs = arguments.port;
    plugs.resize(count, Plug::Open);
    let wires = plugs
        .into_iter()
        .enumerate()
        .map(|(port, plug)| plug.wire(port));
    let faults = Faults {
        bad_completion: arguments.bad_completion,
        lost_interrupt: arguments.lost_interrupt,
        late_completion: arguments.late_completion,
        lost_packet: arguments.lost_packet,
    };
    let (mut card, doorbells) = Card::new(wires.collect::<io::Result<_>>()?, faults)?;
    let endpoints = arguments.socket.iter().zip(doorbells).enumerate();
    let endpoints = endpoints.map(|(function, (path, doorbells))| {
        Endpoint::new(path, function, doorbells)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    });
    let mut machine = Machine {
        endpoints: endpoints.collect::<io::Result<_>>()?,
    };
    println!("ready");
    io::stdout().flush()?;
    serve(&mut card, &mut machine, &commands())
}

/// Lines of standard input, until it ends.
fn commands() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn serve(
    card: &mut Card,
    machine: &mut Machine,
    commands: &mpsc::Receiver<String>,
) -> io::Result<()> {
    let started = Instant::now();
    let mut busy_ns = 0;
    loop {
        let mut now_ns = 0;
        for _ in 0..ROUNDS {
            now_ns = started.elapsed().as_nanos() as u64;
            if card.round(machine, now_ns) {
                busy_ns = now_ns;
            } else {
                break;
            }
        }
        let alone = !machine.endpoints.iter().any(Endpoint::has_client);
        let pause_ns = match now_ns.saturating_sub(busy_ns) {
            _ if alone => PAUSE_ALONE_NS,
            0..SPIN_NS => 0,
            _ => PAUSE_NS,
        };
        for function in ready(machine, pause_ns)? {
            busy_ns = started.elapsed().as_nanos() as u64;
            if let Err(error) = machine.endpoints[function].serve(card) {
                eprintln!("opennic-model: function {function}: {error}");
            }
        }
        while let Ok(line) = commands.try_recv() {
            println!("{}", obey(card, &line));
            io::stdout().flush()?;
        }
    }
}

/// The functions whose sockets have something, after at most that long.
fn ready(machine: &Machine, pause_ns: i64) -> io::Result<Vec<usize>> {
    let mut fds: Vec<PollFd> = machine
        .endpoints
        .iter()
        .map(|endpoint| PollFd::from_borrowed_fd(endpoint.descriptor(), PollFlags::IN))
        .collect();
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: pause_ns,
    };
    match poll(&mut fds, Some(&pause)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ready = fds
        .iter()
        .enumerate()
        .filter(|(_, fd)| !fd.revents().is_empty());
    Ok(ready.map(|(at, _)| at).collect())
}

/// Does what a line says; the answer.
fn obey(card: &mut Card, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["link", port, state @ ("up" | "down")] => {
            let port = port
                .parse()
                .ok()
                .and_then(|port: usize| card.shell.ports.get_mut(port));
            match port {
                Some(port) => {
                    port.set_carrier(state == "up");
                    format!("link {state}")
                }
                None => "error: no such port".into(),
            }
        }
        ["counts"] => format!("counts {}", card.counts()),
        _ => "error: link PORT up|down, or counts".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_are_said_in_words() {
        let plan = Plan {
            len: 64,
            flows: 8,
            count: 0,
        };
        assert_eq!("gen:64,8,0".parse(), Ok(Plug::Generator(plan)));
        assert_eq!("tap:t0".parse(), Ok(Plug::Tap("t0".into())));
        for wrong in ["", "gen:64", "gen:64,8", "gen:a,b,c", "gone"] {
            assert!(wrong.parse::<Plug>().is_err(), "{wrong}");
        }
    }
}
