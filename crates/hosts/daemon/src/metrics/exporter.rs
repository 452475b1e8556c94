//! Hands figures out over HTTP, in a thread of its own: scrapers that are slow, or worse, keep
//! nobody else waiting.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Family;
use super::request::{self, Request};
use super::text::{Format, render};

/// Scrapes at a time; the oldest one gives its place to another.
const CONNECTIONS_MAX: usize = 16;
/// Time for one scrape, from the connection to the last byte of the answer.
const SCRAPE_MAX: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const REQUEST_BYTES_MAX: usize = 8192;
/// Figures are asked for at most so often; in between, scrapes get the last ones.
const FRESH: Duration = Duration::from_millis(500);
/// Of answers that are for people.
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// How long accepting stops when there is no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The server's handle of the thread.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    /// Readable when figures are wanted.
    wanted: Arc<OwnedFd>,
    /// Rings when they are there, or at the end.
    ready: Arc<OwnedFd>,
    stopping: Arc<AtomicBool>,
    answers: Sender<Arc<Vec<Family>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Exporter {
    /// Listens. Nothing blocks.
    ///
    /// # Errors
    /// The address cannot be listened at, or there is no descriptor or thread left.
    pub fn start(address: SocketAddr) -> io::Result<Exporter> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (wanted, ready) = (Arc::new(event()?), Arc::new(event()?));
        let stopping = Arc::new(AtomicBool::new(false));
        let (answers, figures) = mpsc::channel();
        let thread = Thread {
            listener,
            wanted: wanted.clone(),
            ready: ready.clone(),
            stopping: stopping.clone(),
            figures,
            last: None,
            is_asked: false,
            scrapes: Vec::new(),
            paused_until: None,
        };
        let thread = std::thread::Builder::new()
            .name("sluiced-metrics".to_owned())
            .spawn(move || thread.run())?;
        Ok(Exporter {
            address,
            wanted,
            ready,
            stopping,
            answers,
            thread: Some(thread),
        })
    }

    /// Where it listens, with the port that the kernel chose for 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Readable when [`Exporter::answer`] is to be called.
    pub fn wanted(&self) -> impl AsFd + use<> {
        self.wanted.clone()
    }

    /// Gives the figures, if somebody wants them.
    pub fn answer(&self, figures: impl FnOnce() -> Vec<Family>) {
        if rustix::io::read(&*self.wanted, &mut [0; 8]).is_ok() {
            let _ = self.answers.send(Arc::new(figures()));
            ring(&self.ready);
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        ring(&self.ready);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ring(fd: &OwnedFd) {
    // It can only be full, and then it rings already.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

/// What a scrape waits for.
#[derive(Debug)]
enum Stage {
    Request(Vec<u8>),
    Figures {
        format: Format,
        has_body: bool,
    },
    /// The same figures, of which it says no more than that they came: who gives them is the thread that
    /// serves programs.
    Health {
        has_body: bool,
    },
    /// An answer, and how much of it has gone.
    Answer(Vec<u8>, usize),
    Over,
}

#[derive(Debug)]
struct Scrape {
    stream: TcpStream,
    until: Instant,
    stage: Stage,
}

struct Thread {
    listener: TcpListener,
    wanted: Arc<OwnedFd>,
    ready: Arc<OwnedFd>,
    stopping: Arc<AtomicBool>,
    figures: Receiver<Arc<Vec<Family>>>,
    last: Option<(Arc<Vec<Family>>, Instant)>,
    is_asked: bool,
    scrapes: Vec<Scrape>,
    paused_until: Option<Instant>,
}

impl Thread {
    fn run(mut self) {
        loop {
            self.wait();
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            let now = Instant::now();
            let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
            while let Ok(figures) = self.figures.try_recv() {
                self.last = Some((figures, now));
                self.is_asked = false;
            }
            self.paused_until = self.paused_until.filter(|until| *until > now);
            if self.paused_until.is_none() {
                self.accept(now);
            }
            let fresh = self.last.clone();
            let fresh = fresh.filter(|(_, at)| now.duration_since(*at) < FRESH);
            for scrape in &mut self.scrapes {
                scrape.go_on(fresh.as_ref().map(|(figures, _)| figures.as_slice()));
            }
            self.scrapes
                .retain(|it| !matches!(it.stage, Stage::Over) && it.until > now);
            let mut stages = self.scrapes.iter().map(|scrape| &scrape.stage);
            let waits = |it: &Stage| matches!(it, Stage::Figures { .. } | Stage::Health { .. });
            if !self.is_asked && stages.any(waits) {
                self.is_asked = true;
                ring(&self.wanted);
            }
        }
    }

    fn wait(&self) {
        let now = Instant::now();
        let deadlines = self.scrapes.iter().map(|scrape| scrape.until);
        let timeout = deadlines.chain(self.paused_until).min().map(|until| {
            // Rounded up, so that it has come when the wait is over.
            let left = until.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let mut fds = vec![PollFd::new(&*self.ready, PollFlags::IN)];
        if self.paused_until.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        for scrape in &self.scrapes {
            let interest = match scrape.stage {
                Stage::Request(_) => PollFlags::IN,
                Stage::Answer(..) => PollFlags::OUT,
                // Its end would be told in any case, over and over.
                Stage::Figures { .. } | Stage::Health { .. } | Stage::Over => continue,
            };
            fds.push(PollFd::new(&scrape.stream, interest));
        }
        // Interrupted, or out of memory: what is there is looked at anyway.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn accept(&mut self, now: Instant) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.scrapes.len() >= CONNECTIONS_MAX {
                        self.scrapes.remove(0);
                    }
                    self.scrapes.push(Scrape {
                        stream,
                        until: now + SCRAPE_MAX,
                        stage: Stage::Request(Vec::new()),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }
}

impl Scrape {
    /// Does what can be done without waiting.
    fn go_on(&mut self, figures: Option<&[Family]>) {
        if let Stage::Request(_) = self.stage {
            self.read();
        }
        let answer = match (&self.stage, figures) {
            (Stage::Figures { format, has_body }, Some(figures)) => {
                let body = render(figures, *format);
                Some(response("200 OK", format.content_type(), &body, *has_body))
            }
            (Stage::Health { has_body }, Some(_)) => {
                Some(response("200 OK", PLAIN_TEXT, "ok\n", *has_body))
            }
            _ => None,
        };
        if let Some(answer) = answer {
            self.stage = Stage::Answer(answer, 0);
        }
        if let Stage::Answer(..) = self.stage {
            self.write();
        }
    }

    fn read(&mut self) {
        let Stage::Request(bytes) = &mut self.stage else {
            return;
        };
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return self.stage = Stage::Over,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.stage = Stage::Over,
            }
            match request::parse(bytes) {
                Some(Request::Metrics { format, has_body }) => {
                    return self.stage = Stage::Figures { format, has_body };
                }
                Some(Request::Health { has_body }) => {
                    return self.stage = Stage::Health { has_body };
                }
                Some(Request::Wrong(status)) => {
                    return self.stage = Stage::Answer(refusal(status), 0);
                }
                None if bytes.len() > REQUEST_BYTES_MAX => {
                    let status = "431 Request Header Fields Too Large";
                    return self.stage = Stage::Answer(refusal(status), 0);
                }
                None => {}
            }
        }
    }

    fn write(&mut self) {
        let Stage::Answer(bytes, gone) = &mut self.stage else {
            return;
        };
        while let Some(rest) = bytes.get(*gone..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => break,
                Ok(count) => *gone += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.stage = Stage::Over;
    }
}

fn refusal(status: &str) -> Vec<u8> {
    let body = format!("{status}; the figures are at /metrics\n");
    response(status, PLAIN_TEXT, &body, true)
}

fn response(status: &str, content_type: &str, body: &str, has_body: bool) -> Vec<u8> {
    let length = body.len();
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let body = if has_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         {allow}Connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// The exporter's own thread always answers: that it does says nothing about who serves programs.
    #[test]
    fn health_waits_for_the_server() {
        let exporter = Exporter::start((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let wanted = exporter.wanted();
        poll(&mut [PollFd::new(&wanted, PollFlags::IN)], None).unwrap();
        stream.set_nonblocking(true).unwrap();
        let early = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        exporter.answer(Vec::new);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    }
}
