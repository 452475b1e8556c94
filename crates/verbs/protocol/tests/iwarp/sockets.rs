//! Both ends over sockets of the kernel's, through loopback.

use std::net::{TcpListener, TcpStream};
use std::thread;

use super::socket::{self, Driver, wishes};

#[test]
fn there_and_back() {
    for crc in [false, true] {
        for size in [8, 64, 1500, 100_000] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = thread::spawn(move || {
                let (tcp, _) = listener.accept().unwrap();
                socket::serve(Driver::accept(tcp, &wishes(false), 0).unwrap())
            });
            let tcp = TcpStream::connect(address).unwrap();
            let mut driver = Driver::connect(tcp, &wishes(crc), 2 * size).unwrap();
            socket::ping(&mut driver, 20, size).unwrap();
            drop(driver);
            assert_eq!(server.join().unwrap().unwrap(), 20);
        }
    }
}
