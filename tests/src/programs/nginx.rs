//! nginx, which serves the files below `www` of a test's directory.

use std::fs;
use std::path::Path;

use crate::programs::text;
use crate::suite::Verdict;

/// What differs from test to test.
#[derive(Clone, Debug)]
pub struct Nginx {
    pub workers: u32,
    /// Addresses, as the directive `listen` has them.
    pub listen: Vec<String>,
    /// A connection that has had so many is closed.
    pub requests_per_connection: u32,
    /// Whether there is `access`, with a line for each request: the client, the server and its port,
    /// the status, and the file.
    pub has_log: bool,
}

impl Nginx {
    /// Writes the configuration and makes `www`; its arguments.
    pub fn prepare(&self, dir: &Path) -> Verdict<[String; 4]> {
        // Run as root or not: the workers must be able to read the private directory.
        let user = if rustix::process::geteuid().is_root() {
            "user root;"
        } else {
            ""
        };
        let at = text(dir);
        let log = if self.has_log {
            format!(
                "log_format it '$remote_addr $server_addr:$server_port $status $uri'; \
                 access_log {at}/access it;"
            )
        } else {
            "access_log off;".to_owned()
        };
        let listen: Vec<String> = self
            .listen
            .iter()
            .map(|it| format!("listen {it};"))
            .collect();
        let config = format!(
            "daemon off; {user} worker_processes {}; worker_rlimit_nofile 4096;\n\
             pid {at}/nginx.pid; error_log {at}/nginx.error;\n\
             events {{ worker_connections 2048; }}\n\
             http {{ {log} sendfile on; tcp_nopush on; keepalive_requests {};\n\
               client_body_temp_path {at}/nginx-body; proxy_temp_path {at}/nginx-proxy;\n\
               fastcgi_temp_path {at}/nginx-f; uwsgi_temp_path {at}/nginx-u;\n\
               scgi_temp_path {at}/nginx-s;\n\
               server {{ {} root {at}/www; }} }}\n",
            self.workers,
            self.requests_per_connection,
            listen.join(" "),
        );
        fs::create_dir_all(dir.join("www"))?;
        let file = dir.join("nginx.conf");
        fs::write(&file, config)?;
        Ok(["-c".to_owned(), text(file), "-p".to_owned(), at])
    }
}
