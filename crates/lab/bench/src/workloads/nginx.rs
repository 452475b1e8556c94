//! nginx and wrk: HTTP with kept connections and with a new connection per request, and haproxy
//! between the two.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::beside::Beside;
use super::{Cell, Options, Workload};
use crate::error::{BenchError, Result};
use crate::figures::counted;
use crate::machine;
use crate::model::{Better, CostUnit, PointSpec, Sample, Variant};
use crate::parse;
use crate::process::{Process, Ready};
use crate::session::Session;
use crate::words::{path_text, words};

pub(super) const WORKLOAD: Workload = Workload {
    name: "nginx",
    title: "nginx and wrk, 50 connections",
    about: "Static files through nginx with sendfile on (configuration: bench/nginx.conf), asked \
            for by wrk with one thread. A run of one second is dropped first. 'New connection' \
            sends `Connection: close` with every request. 'haproxy' puts haproxy with one thread \
            between wrk and nginx, under sluice run too where nginx is.",
    programs: &["nginx", "wrk"],
    compared_with: &[],
    obstacle: None,
    cells,
};

const NGINX_CONF: &str = include_str!("../../../../../bench/nginx.conf");
const HAPROXY_CFG: &str = include_str!("../../../../../bench/haproxy.cfg");
const CONNECTIONS: u32 = 50;
/// Modules that want a folder for temporary files, whether used or not.
const TEMP_MODULES: [&str; 3] = ["fastcgi", "uwsgi", "scgi"];

#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    connections: u32,
    workers: u32,
    close: bool,
    file_kib: u32,
    through_haproxy: bool,
}

impl Shape {
    /// The file of 1 KiB from one worker, over so many connections that stay.
    pub(super) fn kept(connections: u32) -> Self {
        Self {
            connections,
            workers: 1,
            close: false,
            file_kib: 1,
            through_haproxy: false,
        }
    }
}

fn cells(options: &Options) -> Vec<Cell> {
    let variants = options.variants_of(&[Variant::Tcp, Variant::Sluice]);
    let mut shapes = Vec::new();
    for close in [false, true] {
        for workers in [1, 2] {
            for file_kib in [1, 64] {
                shapes.push(Shape {
                    connections: CONNECTIONS,
                    workers,
                    close,
                    file_kib,
                    through_haproxy: false,
                });
            }
        }
    }
    if machine::find_program("haproxy").is_some() {
        shapes.push(Shape {
            connections: CONNECTIONS,
            workers: 1,
            close: false,
            file_kib: 1,
            through_haproxy: true,
        });
    }
    let cell = |shape: Shape| Cell {
        title: format!("nginx, {}", label(shape)),
        variants: variants.clone(),
        repetitions: options.repetitions,
        points: vec![point(shape)],
        run: Box::new(move |session, variant| {
            Ok(vec![measure(session, variant, shape, &Beside::nothing())?])
        }),
    };
    shapes.into_iter().map(cell).collect()
}

fn label(shape: Shape) -> String {
    let workers = counted(shape.workers, "worker");
    let proxy = if shape.through_haproxy {
        ", haproxy"
    } else {
        ""
    };
    format!("{} KiB, {workers}{proxy}", shape.file_kib)
}

fn point(shape: Shape) -> PointSpec {
    let group = if shape.close {
        "new connection per request"
    } else {
        "keep-alive"
    };
    PointSpec {
        group: group.to_owned(),
        label: label(shape),
        x: None,
        unit: "requests/s",
        better: Better::Higher,
        cost_unit: CostUnit::Operation,
        paired: false,
        baseline: Variant::Tcp,
    }
}

pub(super) fn measure(
    session: &Session,
    variant: Variant,
    shape: Shape,
    beside: &Beside,
) -> Result<Sample> {
    let folder = session.folder("nginx")?;
    let nginx_port = session.free_port()?;
    let nginx = start_nginx(session, variant, shape, &folder, (nginx_port, beside))?;
    let haproxy = if shape.through_haproxy {
        let port = session.free_port()?;
        Some((
            start_haproxy(session, variant, &folder, port, nginx_port)?,
            port,
        ))
    } else {
        None
    };
    let port = haproxy.as_ref().map_or(nginx_port, |(_, port)| *port);
    let client_words = |seconds: u32| {
        let mut words = words![
            "wrk",
            "-t",
            1,
            "-c",
            shape.connections,
            "-d",
            format!("{seconds}s")
        ];
        words.push("--latency".to_owned());
        if shape.close {
            words.extend(words!["-H", "Connection: close"]);
        }
        words.push(format!("http://127.0.0.1:{port}/{}k", shape.file_kib));
        beside.placed(words)
    };
    session
        .client(variant, &client_words(1), 1)?
        .read(parse::wrk)?;
    let mut servers = vec![&nginx];
    servers.extend(haproxy.as_ref().map(|(process, _)| process));
    let (output, mut sample) = session.measured(
        variant,
        &beside.with(&servers),
        &client_words(session.seconds),
    )?;
    let result = output.read(parse::wrk)?;
    sample.value = result.requests_per_s;
    sample.operations = result.requests;
    sample.bytes = result.requests * f64::from(shape.file_kib) * 1024.0;
    sample
        .details
        .insert("latency_p50_us", result.latency_p50_us);
    sample
        .details
        .insert("latency_p99_us", result.latency_p99_us);
    Ok(sample)
}

fn start_nginx(
    session: &Session,
    variant: Variant,
    shape: Shape,
    folder: &Path,
    (port, beside): (u16, &Beside),
) -> Result<Process> {
    let root = session.folder("nginx/www")?;
    write(
        &root.join(format!("{}k", shape.file_kib)),
        &vec![b'x'; shape.file_kib as usize * 1024],
    )?;
    let conf = folder.join("nginx.conf");
    let text = NGINX_CONF
        .replace("@WORKERS@", &shape.workers.to_string())
        .replace("@PORT@", &port.to_string())
        .replace("@TEMP_PATHS@", &temp_paths(&nginx_configure_arguments()));
    write(&conf, text.as_bytes())?;
    let words = words![
        "nginx",
        "-p",
        path_text(folder),
        "-e",
        "stderr",
        "-c",
        path_text(&conf)
    ];
    session.server(variant, &beside.placed(words), &Ready::Tcp(port))
}

fn start_haproxy(
    session: &Session,
    variant: Variant,
    folder: &Path,
    port: u16,
    nginx_port: u16,
) -> Result<Process> {
    let cfg = folder.join("haproxy.cfg");
    let text = HAPROXY_CFG
        .replace("@SERVER_PORT@", &nginx_port.to_string())
        .replace("@PORT@", &port.to_string());
    write(&cfg, text.as_bytes())?;
    let words = words!["haproxy", "-db", "-f", path_text(&cfg)];
    session.server(variant, &words, &Ready::Tcp(port))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes)
        .map_err(|error| BenchError::io(format!("write {}", path.display()), &error))
}

/// What `nginx -V` says; empty if it cannot be asked, and then its own start will fail visibly.
fn nginx_configure_arguments() -> String {
    let Some(path) = machine::find_program("nginx") else {
        return String::new();
    };
    let output = Command::new(path).arg("-V").stdin(Stdio::null()).output();
    output
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .unwrap_or_default()
}

/// Without these lines nginx wants to make folders below `/var`, which only root may; with them
/// a build without the module refuses to start.
fn temp_paths(configure_arguments: &str) -> String {
    TEMP_MODULES
        .iter()
        .filter(|module| !configure_arguments.contains(&format!("--without-http_{module}_module")))
        .map(|module| format!("{module}_temp_path temp_{module};"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_modules_get_no_folder() {
        assert_eq!(
            temp_paths("--without-http_uwsgi_module --without-http_scgi_module"),
            "fastcgi_temp_path temp_fastcgi;"
        );
    }

    #[test]
    fn templates_hold_every_word_that_is_replaced() {
        for word in ["@WORKERS@", "@PORT@", "@TEMP_PATHS@"] {
            assert_eq!(NGINX_CONF.matches(word).count(), 1, "{word}");
        }
        for word in ["@PORT@", "@SERVER_PORT@"] {
            assert_eq!(HAPROXY_CFG.matches(word).count(), 1, "{word}");
        }
    }
}
