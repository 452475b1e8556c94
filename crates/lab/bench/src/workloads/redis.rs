//! redis-server and redis-benchmark: many small requests, and how that scales with clients.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::beside::Beside;
use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::figures::counted;
use crate::machine;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::parse;
use crate::process::{Output, Process, Ready};
use crate::session::Session;
use crate::words::{path_text, words};

pub(super) const WORKLOAD: Workload = Workload {
    name: "redis",
    title: "redis-server and redis-benchmark, values of 2,048 bytes",
    about: "A new server without persistence for every run, filled with all keys before \
            anything is measured. A GET run with the same clients, whose result is dropped, warms \
            up and chooses the number of requests. CPU time covers server, client and sluiced.",
    programs: &["redis-server", "redis-benchmark"],
    compared_with: &[],
    obstacle: None,
    cells,
};

/// The clients of the curve, and its requests.
pub const CLIENTS: [u32; 8] = [1, 10, 30, 40, 50, 100, 500, 1_000];
pub use sluice_bench_args::REDIS_TESTS as TESTS;

/// Why a run is refused: a GET that finds no key is answered by five bytes, and so is an LPOP of an empty list.
pub const KEYS_MISSING: &str =
    "redis answered without a value: not all that is asked for was there";

/// The test that [`TESTS`] does not have, because redis-benchmark does not.
pub const HGET: &str = "hget";
/// What redis-benchmark calls its hash and its list.
pub const HASH: &str = "myhash";
const LIST: &str = "mylist";

const VALUE_BYTES: u32 = 2_048;
const KEYS: u32 = 10_000;
/// The shortest run that counts; fewer requests would measure the start of the clients.
const REQUESTS_MIN: f64 = 2_000.0;
const FILL_BATCH: u32 = 100;
const FILL_TIMEOUT: Duration = Duration::from_secs(20);

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Unix, Variant::Sluice]);
    let cell = |&clients: &u32| {
        let tests = options.redis_tests.clone();
        Cell {
            title: format!("redis, {}", counted(clients, "client")),
            variants: variants.clone(),
            repetitions: options.repetitions,
            points: points(&tests, clients),
            run: Box::new(move |session, variant| {
                measure(session, variant, clients, &tests, &Beside::nothing())
            }),
        }
    };
    options.redis_clients.iter().map(cell).collect()
}

/// One point for each test, with this number of clients.
pub(super) fn points(tests: &[String], clients: u32) -> Vec<PointSpec> {
    let point = |test: &String| PointSpec {
        group: test.to_uppercase(),
        label: counted(clients, "client"),
        x: Some(f64::from(clients)),
        unit: "requests/s",
        better: Better::Higher,
        cost_unit: CostUnit::Operation,
        paired: false,
        baseline: Variant::Tcp,
    };
    tests.iter().map(point).collect()
}

/// Starts a server and runs the tests against it, one after the other.
pub(super) fn measure(
    session: &Session,
    variant: Variant,
    clients: u32,
    tests: &[String],
    beside: &Beside,
) -> Result<Vec<Sample>> {
    let place = Place::new(session, variant, beside)?;
    let server = place.start_server(session, variant)?;
    let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, place.port);
    fill(at)?;
    let words = place.client_words("get", clients, pilot_requests(clients));
    let pilot = session.client(variant, &words, session.seconds)?;
    let pilot = pilot.read(|text| parse::redis(text, "GET"))?;
    let requests = requests_for(pilot.requests_per_s, session.seconds);
    let misses_before = get_misses(at)?;
    let mut samples = Vec::with_capacity(tests.len());
    for test in tests {
        samples.push(run_test(
            session,
            variant,
            &place,
            &server,
            (test, clients, requests),
        )?);
    }
    // A GET that finds no key answers five bytes instead of 2 KiB.
    if get_misses(at)? != misses_before {
        return Err(BenchError::Failed(KEYS_MISSING.to_owned()));
    }
    Ok(samples)
}

/// Requests of the run that warms up.
pub fn pilot_requests(clients: u32) -> f64 {
    f64::from(clients.saturating_mul(20)).max(REQUESTS_MIN)
}

fn run_test(
    session: &Session,
    variant: Variant,
    place: &Place<'_>,
    server: &Process,
    (test, clients, requests): (&str, u32, f64),
) -> Result<Sample> {
    let words = place.client_words(test, clients, requests);
    let (output, measured) = session.measured(variant, &place.beside.with(&[server]), &words)?;
    sample(&output, measured, test, requests)
}

/// Puts what redis-benchmark said of a test to the sample.
pub fn sample(output: &Output, mut sample: Sample, test: &str, requests: f64) -> Result<Sample> {
    let result = output.read(|text| parse::redis(text, &test.to_uppercase()))?;
    sample.value = result.requests_per_s;
    sample.operations = requests.floor();
    sample.bytes = sample.operations * f64::from(VALUE_BYTES);
    sample
        .details
        .insert("latency_avg_ms", result.latency_avg_ms);
    sample
        .details
        .insert("latency_p50_ms", result.latency_p50_ms);
    sample
        .details
        .insert("latency_p99_ms", result.latency_p99_ms);
    Ok(sample)
}

/// Where a server is reached.
struct Place<'a> {
    port: u16,
    folder: std::path::PathBuf,
    unix: Option<String>,
    beside: &'a Beside,
}

impl<'a> Place<'a> {
    fn new(session: &Session, variant: Variant, beside: &'a Beside) -> Result<Self> {
        let port = session.free_port()?;
        let folder = session.folder("redis")?;
        let unix = (variant == Variant::Unix).then(|| path_text(&folder.join("redis.sock")));
        Ok(Self {
            port,
            folder,
            unix,
            beside,
        })
    }

    fn start_server(&self, session: &Session, variant: Variant) -> Result<Process> {
        let mut words = words![
            "redis-server",
            "--port",
            self.port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            path_text(&self.folder),
        ];
        if let Some(path) = &self.unix {
            words.extend(words!["--unixsocket", path]);
        }
        let words = self.beside.placed(words);
        let mut server = session.server(variant, &words, &Ready::Tcp(self.port))?;
        if let Some(path) = &self.unix {
            server.wait_ready(&Ready::Unix(Path::new(path).to_owned()))?;
        }
        Ok(server)
    }

    fn client_words(&self, test: &str, clients: u32, requests: f64) -> Vec<String> {
        let mut words = words!["redis-benchmark"];
        match &self.unix {
            Some(path) => words.extend(words!["-s", path]),
            None => words.extend(words!["-h", "127.0.0.1", "-p", self.port]),
        }
        words.extend(benchmark_words(test, clients, requests));
        self.beside.placed(words)
    }
}

/// What redis-benchmark is to do. It has no test of its own for HGET and takes that as a command.
pub fn benchmark_words(test: &str, clients: u32, requests: f64) -> Vec<String> {
    let mut words = match test {
        HGET => words![],
        test => words!["-t", test],
    };
    words.extend(words!["-d", VALUE_BYTES, "-r", KEYS]);
    words.extend(words!["-c", clients, "-n", requests.floor(), "--csv"]);
    if test == HGET {
        words.extend(words!["HGET", HASH, "element:__rand_int__"]);
    }
    words
}

/// Requests for a run of `seconds`, bounded by memory: LPUSH keeps every value.
pub fn requests_for(rate_per_s: f64, seconds: u32) -> f64 {
    let room_bytes = machine::memory_available_bytes() / 8;
    let room_requests = (room_bytes / u64::from(VALUE_BYTES)) as f64;
    (rate_per_s * f64::from(seconds))
        .min(room_requests)
        .max(REQUESTS_MIN)
}

/// Writes every key that redis-benchmark may ask for (`key:` and twelve digits).
pub fn fill(at: SocketAddrV4) -> Result<()> {
    fill_by(at, "+OK\r\n", |key| {
        vec!["SET".to_owned(), format!("key:{key:012}")]
    })
}

/// Writes every field of the hash that redis-benchmark may ask for. None may be there yet.
pub fn fill_hash(at: SocketAddrV4) -> Result<()> {
    fill_by(at, ":1\r\n", |key| {
        vec![
            "HSET".to_owned(),
            HASH.to_owned(),
            format!("element:{key:012}"),
        ]
    })
}

/// Sends commands that `command` begins and a value ends, each of which is to be answered by `answer`.
fn fill_by(at: SocketAddrV4, answer: &str, command: impl Fn(u32) -> Vec<String>) -> Result<()> {
    let value = "x".repeat(VALUE_BYTES as usize);
    let mut connection = connect(at)?;
    for first in (0..KEYS).step_by(FILL_BATCH as usize) {
        let last = (first + FILL_BATCH).min(KEYS);
        let mut batch = String::new();
        for key in first..last {
            let mut words = command(key);
            words.push(value.clone());
            batch.push_str(&format!("*{}\r\n", words.len()));
            for word in &words {
                batch.push_str(&format!("${}\r\n{word}\r\n", word.len()));
            }
        }
        let mut answers = vec![0_u8; answer.len() * (last - first) as usize];
        connection
            .write_all(batch.as_bytes())
            .and_then(|()| connection.read_exact(&mut answers))
            .map_err(|error| BenchError::io("fill redis with keys", &error))?;
        if !answers
            .chunks(answer.len())
            .all(|each| each == answer.as_bytes())
        {
            let said = String::from_utf8_lossy(&answers).into_owned();
            return Err(BenchError::Failed(format!("redis refused a key: {said}")));
        }
    }
    Ok(())
}

/// How many reads have found no key so far, by the server's own count.
pub fn get_misses(at: SocketAddrV4) -> Result<u64> {
    number_of(at, "INFO stats", "keyspace_misses:")
}

/// How many commands the server has obeyed so far, by its own count.
pub fn commands_done(at: SocketAddrV4) -> Result<u64> {
    number_of(at, "INFO stats", "total_commands_processed:")
}

/// How many values redis-benchmark's list has.
pub fn list_length(at: SocketAddrV4) -> Result<u64> {
    number_of(at, &format!("LLEN {LIST}"), ":")
}

/// The number behind `name` at the beginning of a line of what the server answers.
fn number_of(at: SocketAddrV4, question: &str, name: &str) -> Result<u64> {
    let mut connection = connect(at)?;
    let mut answer = String::new();
    // QUIT makes the server close, so that the answer has an end.
    connection
        .write_all(format!("{question}\r\nQUIT\r\n").as_bytes())
        .and_then(|()| connection.read_to_string(&mut answer))
        .map_err(|error| BenchError::io("ask redis for its counters", &error))?;
    answer
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| {
            BenchError::Failed(format!("redis does not count '{name}'; it said {answer}"))
        })
}

fn connect(at: SocketAddrV4) -> Result<TcpStream> {
    TcpStream::connect(at)
        .and_then(|stream| {
            stream.set_read_timeout(Some(FILL_TIMEOUT))?;
            stream.set_write_timeout(Some(FILL_TIMEOUT))?;
            Ok(stream)
        })
        .map_err(|error| BenchError::io("connect to redis", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hget_is_a_command_behind_the_options() {
        let words = benchmark_words("set", 3, 10.5);
        assert_eq!(words[..2], ["-t", "set"]);
        let words = benchmark_words(HGET, 3, 10.5);
        assert!(!words.contains(&"-t".to_owned()), "{words:?}");
        let command = ["--csv", "HGET", HASH, "element:__rand_int__"];
        assert_eq!(words[words.len() - 4..], command);
        assert!(words.join(" ").contains("-c 3 -n 10 "), "{words:?}");
    }

    #[test]
    fn number_of_requests_follows_the_rate_within_bounds() {
        assert_eq!(requests_for(10.0, 1), REQUESTS_MIN);
        assert_eq!(requests_for(9_600.0, 2), 19_200.0);
        let bounded = requests_for(1e12, 3);
        assert!(bounded < 1e12, "{bounded}");
    }
}
