//! Latency and bandwidth of links, as `ib_write_lat` and `ib_write_bw` measure them, and how many
//! questions a second they carry.
//!
//! ```text
//! ping DEVICE LIBRARY LOCAL PORT               # one host; waits for the other
//! ping DEVICE LIBRARY LOCAL PORT PEER WHAT     # the other; WHAT is lat, bw, rate or ask
//! ```
//!
//! Words `send_depth=N`, `receive_depth=N` and `inline_bytes=N` behind these change the limits. With
//! `ask`, each of `clients=N` (10) asks with a write of `question=N` bytes (40), and again when the
//! answer of `answer=N` bytes (2,059) is there; each side works `work=N` ns (0) for each. That is what
//! a daemon between socket programs cannot exceed. Both hosts are given the same words.
//!
//! DEVICE is `shm`, `roce`, `roce-udp` or `hw:NAME`; LIBRARY is the path of our libibverbs.so.1;
//! LOCAL and PEER are addresses of the hosts. The endpoints cross by TCP.
#![allow(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use sluice_rdma::{
    Access, DeviceChoice, ENDPOINT_BYTES, Endpoint, Event, Library, Limits, LinkId, Node,
    PostError, Region, Remote,
};

const MEMORY_BYTES: usize = 1 << 20;
const LATENCY_BYTES: u32 = 8;
const LATENCY_ROUNDS: usize = 20_000;
const BANDWIDTH_BYTES: u32 = 64 << 10;
const BANDWIDTH_WRITES: u64 = 20_000;
const RATE_BYTES: u32 = 64;
const RATE_WRITES: u64 = 200_000;
const QUESTIONS: u64 = 1_000_000;

struct End {
    node: Node,
    link: LinkId,
    region: Region,
    peer: Remote,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (settings, words): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word.contains('='));
    let (limits, asking) = settings_of(&settings)?;
    let (device, library, local, port, peer) = match &words[..] {
        [device, library, local, port] => (device, library, local, port, None),
        [device, library, local, port, peer, what] => {
            (device, library, local, port, Some((peer, what)))
        }
        _ => return Err("ping DEVICE LIBRARY LOCAL PORT [PEER lat|bw|rate|ask]".into()),
    };
    let choice: DeviceChoice = device.parse()?;
    // SAFETY: there is no other thread.
    unsafe { choice.set_environment() };
    let local: IpAddr = local.parse()?;
    let port: u16 = port.parse()?;
    let (mut control, what) = match peer {
        None => {
            let (mut control, _) = TcpListener::bind((local, port))?.accept()?;
            let mut what = [0; 4];
            control.read_exact(&mut what)?;
            (control, String::from_utf8_lossy(&what).into_owned())
        }
        Some((peer, what)) => {
            let mut control = TcpStream::connect((peer.parse::<IpAddr>()?, port))?;
            control.write_all(format!("{what:<4.4}").as_bytes())?;
            (control, what.clone())
        }
    };
    let library = Library::load(&choice, library.as_ref())?;
    let mut end = connect(&mut control, &library, &choice, local, limits)?;
    match (what.trim(), peer.is_some()) {
        ("lat", client) => latency(&mut end, client),
        ("bw", true) => bandwidth(&mut end, BANDWIDTH_BYTES, BANDWIDTH_WRITES),
        ("rate", true) => bandwidth(&mut end, RATE_BYTES, RATE_WRITES),
        ("bw", false) => wait_for(&mut end, BANDWIDTH_WRITES),
        ("rate", false) => wait_for(&mut end, RATE_WRITES),
        ("ask", client) => ask(&mut end, &asking, client),
        _ => return Err("lat, bw, rate or ask".into()),
    }?;
    // Nobody leaves before both are done.
    control.write_all(&[0])?;
    control.read_exact(&mut [0])?;
    Ok(())
}

struct Asking {
    clients: u64,
    question: u32,
    answer: u32,
    work: Duration,
}

fn settings_of(settings: &[String]) -> Result<(Limits, Asking), Box<dyn Error>> {
    let mut limits = Limits::default();
    let mut asking = Asking {
        clients: 10,
        question: 40,
        answer: 2059,
        work: Duration::ZERO,
    };
    for (name, value) in settings.iter().filter_map(|word| word.split_once('=')) {
        match name {
            "send_depth" => limits.send_depth = value.parse()?,
            "receive_depth" => limits.receive_depth = value.parse()?,
            "inline_bytes" => limits.inline_bytes = value.parse()?,
            "clients" => asking.clients = value.parse()?,
            "question" => asking.question = value.parse()?,
            "answer" => asking.answer = value.parse()?,
            "work" => asking.work = Duration::from_nanos(value.parse()?),
            _ => return Err(format!("there is no setting {name}").into()),
        }
    }
    limits.messages_max = limits.messages_max.min(limits.send_depth);
    if asking.clients == 0 {
        return Err("clients: at least one has to ask".into());
    }
    if asking.question.max(asking.answer) as usize > MEMORY_BYTES {
        return Err(format!("question, answer: at most {MEMORY_BYTES} bytes").into());
    }
    Ok((limits, asking))
}

fn connect(
    control: &mut TcpStream,
    library: &Library,
    choice: &DeviceChoice,
    local: IpAddr,
    limits: Limits,
) -> Result<End, Box<dyn Error>> {
    let mut node = Node::open(library, choice, local, limits)?;
    let memory = NonNull::from(Box::leak(vec![0_u8; MEMORY_BYTES].into_boxed_slice()));
    // SAFETY: the memory is never freed, and nobody looks at it.
    let region = unsafe { node.register(memory.cast(), MEMORY_BYTES, Access::Target) }?;
    let (link, endpoint) = node.create_link()?;
    let own = region.remote();
    control.write_all(&endpoint.encode())?;
    control.write_all(&own.address.to_be_bytes())?;
    control.write_all(&own.key.to_be_bytes())?;
    let (mut endpoint, mut address, mut key) = ([0; ENDPOINT_BYTES], [0; 8], [0; 4]);
    control.read_exact(&mut endpoint)?;
    control.read_exact(&mut address)?;
    control.read_exact(&mut key)?;
    node.connect(link, &Endpoint::decode(&endpoint)?)?;
    Ok(End {
        node,
        link,
        region,
        peer: Remote {
            address: u64::from_be_bytes(address),
            key: u32::from_be_bytes(key),
        },
    })
}

fn write(end: &mut End, bytes: u32, number: u32) -> Result<(), PostError> {
    let slice = end
        .region
        .slice(0, bytes)
        .unwrap_or(sluice_rdma::Slice::EMPTY);
    end.node
        .write(end.link, slice, end.peer, Some(number), u64::from(number))
}

/// Polls until so many writes of the peer have arrived.
fn wait_for(end: &mut End, writes: u64) -> Result<(), Box<dyn Error>> {
    let mut arrived = 0;
    while arrived < writes {
        arrived += arrivals(end)?;
    }
    Ok(())
}

/// Polls once. How many writes of the peer have arrived.
fn arrivals(end: &mut End) -> Result<u64, Box<dyn Error>> {
    let (mut arrived, mut broken) = (0, None);
    end.node.poll(64, &mut |event| match event {
        Event::Arrived { .. } => arrived += 1,
        Event::Broken { status, .. } => broken = Some(status),
        _ => {}
    });
    match broken {
        Some(status) => Err(status.to_string().into()),
        None => Ok(arrived),
    }
}

fn latency(end: &mut End, client: bool) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::with_capacity(LATENCY_ROUNDS);
    for round in 0..LATENCY_ROUNDS as u32 {
        let started = Instant::now();
        if client {
            write(end, LATENCY_BYTES, round)?;
            wait_for(end, 1)?;
        } else {
            wait_for(end, 1)?;
            write(end, LATENCY_BYTES, round)?;
        }
        times.push(started.elapsed());
    }
    times.sort();
    let half = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6 / 2.0;
    if client {
        println!(
            "latency of {LATENCY_BYTES} bytes, one way: {:.2} us typical, {:.2} us 99 %",
            half(50),
            half(99)
        );
    }
    Ok(())
}

fn bandwidth(end: &mut End, bytes: u32, writes: u64) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < writes {
        while posted < writes {
            match write(end, bytes, posted as u32) {
                Ok(()) => posted += 1,
                Err(PostError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        end.node.poll(64, &mut |event| {
            if matches!(event, Event::Done { .. }) {
                done += 1;
            }
        });
    }
    let seconds = started.elapsed().as_secs_f64();
    let sum = writes as f64 * f64::from(bytes);
    println!(
        "writes of {bytes} bytes: {:.2} Gb/s, {:.1} MiB/s, {:.3} M/s",
        sum * 8.0 / seconds / 1e9,
        sum / seconds / 1_048_576.0,
        writes as f64 / seconds / 1e6
    );
    Ok(())
}

/// The clients are those of one thread, as `redis-benchmark` has them.
fn ask(end: &mut End, asking: &Asking, client: bool) -> Result<(), Box<dyn Error>> {
    let bytes = if client {
        asking.question
    } else {
        asking.answer
    };
    let started = Instant::now();
    let mut due = if client { asking.clients } else { 0 };
    let (mut sent, mut came) = (0, 0);
    while came < QUESTIONS || sent < QUESTIONS {
        while due > 0 && sent < QUESTIONS {
            let begun = Instant::now();
            while begun.elapsed() < asking.work {
                std::hint::spin_loop();
            }
            match write(end, bytes, 0) {
                Ok(()) => (due, sent) = (due - 1, sent + 1),
                Err(PostError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let arrived = arrivals(end)?;
        (due, came) = (due + arrived, came + arrived);
    }
    if client {
        println!(
            "{} clients, {} B and {} B, {} ns of work on each side: {:.0} requests/s",
            asking.clients,
            asking.question,
            asking.answer,
            asking.work.as_nanos(),
            QUESTIONS as f64 / started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
