//! Shows what becomes of the TCP connections of a cgroup:
//!
//!     watch CGROUP [capture PORT ADDRESS…]
//!
//! asks the other end of each connection whether it can do lanes, and prints what it finds out.
//! With `capture`, connections to the addresses go to a listener at 127.0.0.1:PORT in the network
//! namespace of this program, if there is one. Until it is interrupted.

use std::error::Error;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use sluice_bpf::{
    Capture, CaptureOptions, Cgroup, Destination, Event, Finder, FinderOptions, Listener, Rules,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cgroup, rest @ ..] = &arguments[..] else {
        return Err("which cgroup? Its directory is wanted".into());
    };
    let cgroup = Cgroup::open(Path::new(cgroup))?;
    let options = FinderOptions {
        // It looks by itself.
        wake_after_events: 1000,
        ..FinderOptions::default()
    };
    let mut finder = Finder::attach(&cgroup, &options, &Rules::all())?;
    if let Err(error) = finder.enroll_listeners() {
        eprintln!("listeners of before do not answer: {error}");
    }
    let _capture = match rest {
        [word, port, addresses @ ..] if word == "capture" => {
            let mut capture = Capture::attach(&cgroup, &CaptureOptions::default())?;
            let here = TcpListener::bind("127.0.0.1:0")?;
            let listener = Listener {
                v4: Some(port.parse()?),
                v6: None,
            };
            let netns = sluice_sys::tcp::netns_cookie(here.as_raw_fd())?;
            capture.set_listener(netns, listener)?;
            for address in addresses {
                capture.add_destination(&Destination {
                    address: address.parse()?,
                    port: None,
                    source: None,
                })?;
            }
            Some(capture)
        }
        [] => None,
        _ => return Err("watch CGROUP [capture PORT ADDRESS…]".into()),
    };
    println!("watching");
    loop {
        std::thread::sleep(Duration::from_millis(100));
        finder.read(&mut |event| match event {
            Event::Established(connection) => println!("{connection:?}"),
            Event::Closed { cookie } => println!("{cookie} closed"),
        });
    }
}
