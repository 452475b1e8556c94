//! rping over iWARP on a socket of the kernel's: for trying the state machine against others, such
//! as rdma-core's rping over Linux's siw.
//!
//! ```text
//! rping serve ADDRESS:PORT [crc]              serves one connection
//! rping ping ADDRESS:PORT COUNT SIZE [crc]    as rping -c -V
//! ```

#[path = "../tests/iwarp/socket.rs"]
mod socket;

use std::io;
use std::net::{TcpListener, TcpStream};

use socket::{Driver, wishes};

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "COUNT and SIZE are numbers");
    match words[..] {
        ["serve", address, ref more @ ..] => {
            let listener = TcpListener::bind(address)?;
            println!("listening");
            let (tcp, _) = listener.accept()?;
            let driver = Driver::accept(tcp, &wishes(more == ["crc"]), 0)?;
            println!("{:?}", driver.connection);
            println!("served {} times", socket::serve(driver)?);
        }
        ["ping", address, count, size, ref more @ ..] => {
            let (count, size) = (count.parse().map_err(wrong)?, size.parse().map_err(wrong)?);
            let tcp = TcpStream::connect(address)?;
            let mut driver = Driver::connect(tcp, &wishes(more == ["crc"]), 2 * size)?;
            println!("{:?}", driver.connection);
            socket::ping(&mut driver, count, size)?;
            println!("{count} times {size} bytes there and back");
        }
        _ => println!("rping serve ADDRESS:PORT [crc] | rping ping ADDRESS:PORT COUNT SIZE [crc]"),
    }
    Ok(())
}
