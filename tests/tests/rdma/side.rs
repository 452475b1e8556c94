//! One end: a node, and a control connection with the other end.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use sluice_rdma::{
    Access, DeviceChoice, ENDPOINT_BYTES, Endpoint, Event, Library, Limits, LinkId, Node, Region,
    Remote,
};

use crate::cases;

/// The first argument of a process that is an end.
pub const SIDE: &str = "side";
/// For anything that must happen, on a machine that does other things too.
pub const LIMIT: Duration = Duration::from_secs(100);

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// What an end is told: `side CASE COUNT ROLE DEVICE LIBRARY LOCAL CONTROL`.
pub struct Words {
    pub case: String,
    pub count: u32,
    pub is_left: bool,
    pub choice: DeviceChoice,
    pub library: String,
    pub local: IpAddr,
    /// Where the left end listens, and where the right end finds it.
    pub control: String,
}

/// The words, if this process is to be an end.
pub fn asked_for() -> Option<Vec<String>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    (words.first().map(String::as_str) == Some(SIDE)).then_some(words)
}

pub fn run(words: &[String]) -> ExitCode {
    let outcome = parse(words).and_then(|words| cases::run(&words));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Outcome<Words> {
    let [_, case, count, role, device, library, local, control] = words else {
        return Err("side CASE COUNT ROLE DEVICE LIBRARY LOCAL CONTROL".into());
    };
    let choice: DeviceChoice = device.parse()?;
    // SAFETY: there is no other thread yet.
    unsafe { choice.set_environment() };
    Ok(Words {
        case: case.clone(),
        count: count.parse()?,
        is_left: role == "left",
        choice,
        library: library.clone(),
        local: local.parse()?,
        control: control.clone(),
    })
}

pub struct Side {
    pub node: Node,
    pub is_left: bool,
    control: TcpStream,
}

/// Memory that is never freed, and its region.
pub struct Memory {
    start: NonNull<u8>,
    pub region: Region,
}

impl Side {
    pub fn open(words: &Words, limits: Limits) -> Outcome<Side> {
        let control = control(words)?;
        control.set_read_timeout(Some(LIMIT))?;
        let library = Library::load(&words.choice, words.library.as_ref())?;
        let node = Node::open(&library, &words.choice, words.local, limits)?;
        // Neither ours nor the kernel's.
        if node.is_adapter() {
            return Err(format!("{} is no adapter", words.choice).into());
        }
        Ok(Side {
            node,
            is_left: words.is_left,
            control,
        })
    }

    /// Both ends give bytes of the same length, and get the other's.
    pub fn exchange<const N: usize>(&mut self, bytes: [u8; N]) -> Outcome<[u8; N]> {
        self.control.write_all(&bytes)?;
        let mut other = [0; N];
        self.control.read_exact(&mut other)?;
        Ok(other)
    }

    /// Waits until the other end is here too.
    pub fn meet(&mut self) -> Outcome {
        self.exchange([1]).map(|_| ())
    }

    /// A link with the other end, which makes one as well.
    pub fn link(&mut self) -> Outcome<LinkId> {
        let (link, endpoint) = self.node.create_link()?;
        self.connect(link, &endpoint)?;
        Ok(link)
    }

    pub fn connect(&mut self, link: LinkId, own: &Endpoint) -> Outcome {
        let peer: [u8; ENDPOINT_BYTES] = self.exchange(own.encode())?;
        self.node.connect(link, &Endpoint::decode(&peer)?)?;
        self.meet()
    }

    pub fn memory(&mut self, bytes: usize, access: Access) -> Outcome<Memory> {
        let start = NonNull::from(Box::leak(vec![0_u8; bytes].into_boxed_slice())).cast();
        // SAFETY: the memory is never freed, and only looked at by the methods of Memory.
        let region = unsafe { self.node.register(start, bytes, access) }?;
        Ok(Memory { start, region })
    }

    /// Tells the other end where a region is, and learns the same of its own.
    pub fn exchange_remote(&mut self, region: &Region) -> Outcome<Remote> {
        let own = region.remote();
        let address = self.exchange(own.address.to_be_bytes())?;
        let key = self.exchange(own.key.to_be_bytes())?;
        Ok(Remote {
            address: u64::from_be_bytes(address),
            key: u32::from_be_bytes(key),
        })
    }

    /// Polls until the condition, which sees every event, says what it was waiting for.
    pub fn poll_until<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(Event<'_>) -> Option<T>,
    ) -> Outcome<T> {
        let started = Instant::now();
        let mut found = None;
        loop {
            self.node.poll(1, &mut |event| {
                if let Some(value) = condition(event) {
                    found = Some(value);
                }
            });
            if let Some(found) = found {
                return Ok(found);
            }
            if started.elapsed() > LIMIT {
                return Err(format!("waited in vain for {what}").into());
            }
        }
    }

    /// Sleeps until there may be something to poll. The caller has armed and polled.
    pub fn sleep(&self, limit: Duration) -> Outcome<bool> {
        let mut wanted = libc::pollfd {
            fd: self.node.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let limit = i32::try_from(limit.as_millis())?;
        // SAFETY: one entry.
        match unsafe { libc::poll(&raw mut wanted, 1, limit) } {
            count @ 0.. => Ok(count > 0),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }
}

impl Memory {
    /// The peer writes it at any time, but not these bytes now: it has said that they are written,
    /// and does not write there before it is told to.
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= self.region.length());
        // SAFETY: inside memory that is never freed; the other end does not write these bytes now.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), length) }
    }

    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.region.length());
        // SAFETY: inside memory that is never freed, borrowed for writing: `bytes` is elsewhere.
        unsafe {
            let to = self.start.as_ptr().add(at);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

fn control(words: &Words) -> Outcome<TcpStream> {
    let stream = if words.is_left {
        TcpListener::bind(&words.control)?.accept()?.0
    } else {
        let started = Instant::now();
        loop {
            match TcpStream::connect(&words.control) {
                Ok(stream) => break stream,
                Err(error) if started.elapsed() > LIMIT => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}
