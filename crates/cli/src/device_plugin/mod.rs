//! `sluice device-plugin`: tells the kubelet of a resource, and what containers that ask for it are given
//! (decision 0060).
//!
//! The kubelet removes every socket in its folder when it starts, and forgets who registered. So each of its
//! lives is one of ours: a socket, a registration, and a look each second whether both sockets are those that
//! they were.

mod answers;
mod grpc;
mod messages;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use rustix::fs::Mode;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::args::DevicePluginArgs;
use crate::daemon::{self, State};
use crate::error::{Failure, Outcome, reason};
use crate::log;

use answers::Inventory;
use grpc::{Code, Status};
use messages::{AllocateRequest, DevicePluginOptions, Empty, RegisterRequest, VERSION};

/// The service that the kubelet calls.
const SERVICE: &str = "v1beta1.DevicePlugin";
/// The method by which it is told of us.
const REGISTER: &str = "/v1beta1.Registration/Register";
/// Its socket in its folder.
const KUBELET: &str = "kubelet.sock";
/// Pause between two looks at sockets and at the daemon.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The kubelet has one connection, and another one when it begins anew.
const CONNECTIONS_MAX: usize = 16;
/// A daemon that is slow so often is taken for one that hangs.
const SLOW_ANSWERS_MAX: u32 = 3;

/// Serves the kubelet until a signal ends it.
pub fn run(args: &DevicePluginArgs) -> Outcome {
    crate::exec::ignore_broken_pipes();
    log::start(args.log);
    let system = |error: io::Error| {
        Failure::new(
            format!("the device plugin cannot start: {}", reason(&error)),
            "check the limits of this process",
        )
    };
    // Who may connect may ask for mounts: the kubelet's user alone, from the moment the socket is there.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let (stop, signalled) = std::os::unix::net::UnixStream::pair().map_err(system)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let copy = signalled.try_clone().map_err(system)?;
        signal_hook::low_level::pipe::register(signal, copy).map_err(system)?;
    }
    stop.set_nonblocking(true).map_err(system)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system)?;
    let plugin = Plugin::new(args)?;
    let outcome = LocalSet::new().block_on(&runtime, async {
        let mut stop = UnixStream::from_std(stop).map_err(system)?;
        tokio::select! {
            _ = stop.read_u8() => Ok(0),
            failure = plugin.serve() => Err(failure),
        }
    });
    plugin.put_away();
    // A question to the daemon may be under way, and nobody waits for its answer.
    runtime.shutdown_background();
    outcome
}

/// A socket as a file: another one in its place is told from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Identity> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        Some(Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Says a trouble when it begins and when it is another one, and not each second.
#[derive(Default)]
struct Trouble(String);

impl Trouble {
    fn is(&mut self, text: String) {
        if self.0 != text {
            warn!("{text}");
            self.0 = text;
        }
    }
}

struct Plugin {
    resource: String,
    /// The name of our socket in the kubelet's folder.
    endpoint: String,
    own: PathBuf,
    kubelet: PathBuf,
    daemon: PathBuf,
    inventory: Rc<Inventory>,
}

impl Plugin {
    fn new(args: &DevicePluginArgs) -> Result<Plugin, Failure> {
        let endpoint = format!("{}.sock", args.resource.replace('/', "_"));
        let socket_name = args.socket.file_name().and_then(|name| name.to_str());
        let Some(socket_name) = socket_name else {
            return Err(Failure::new(
                format!("{} names no socket", args.socket.display()),
                "give the path of sluiced's --socket",
            ));
        };
        Ok(Plugin {
            resource: args.resource.clone(),
            own: args.plugins.join(&endpoint),
            endpoint,
            kubelet: args.plugins.join(KUBELET),
            daemon: args.socket.clone(),
            inventory: Rc::new(Inventory {
                count: args.count,
                library: args.library.clone(),
                run: args.run.clone(),
                socket_name: socket_name.to_owned(),
            }),
        })
    }

    /// Serves one life of the kubelet after the other. Ends when another program has our place.
    async fn serve(&self) -> Failure {
        let (health, is_healthy) = watch::channel(false);
        // Ends with the last of those that look.
        tokio::task::spawn_local(watch_daemon(self.daemon.clone(), health));
        let mut trouble = Trouble::default();
        loop {
            match self.listen().await {
                Ok(listener) => self.live(listener, &is_healthy, &mut trouble).await,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Failure::new(
                        format!("another program serves {}", self.own.display()),
                        "one device plugin serves a resource of a node: end the other one",
                    );
                }
                Err(error) => {
                    let at = self.own.display();
                    trouble.is(format!("cannot listen at {at}: {}", reason(&error)));
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn listen(&self) -> io::Result<UnixListener> {
        if Identity::of(&self.own).is_some() {
            if UnixStream::connect(&self.own).await.is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            // One that was killed left it.
            std::fs::remove_file(&self.own)?;
        }
        UnixListener::bind(&self.own)
    }

    /// From a socket of ours until it, or the kubelet's, is another one.
    async fn live(
        &self,
        listener: UnixListener,
        is_healthy: &watch::Receiver<bool>,
        trouble: &mut Trouble,
    ) {
        let own = Identity::of(&self.own);
        let mut kubelet = None;
        let mut server = JoinSet::new();
        server.spawn_local(accept_all(
            listener,
            Rc::clone(&self.inventory),
            is_healthy.clone(),
        ));
        while own.is_some() && Identity::of(&self.own) == own {
            let now = Identity::of(&self.kubelet);
            if kubelet.is_some() && now != kubelet {
                // It will remove ours, or has.
                info!("the kubelet's socket is another one");
                return;
            }
            if kubelet.is_none() {
                match self.register().await {
                    Ok(()) => {
                        info!(resource = %self.resource, "the kubelet knows the resource");
                        kubelet = now;
                        *trouble = Trouble::default();
                    }
                    Err(error) => {
                        let at = self.kubelet.display();
                        trouble.is(format!("cannot register at {at}: {}", reason(&error)));
                    }
                }
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn register(&self) -> io::Result<()> {
        let socket = UnixStream::connect(&self.kubelet).await?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: self.resource.clone(),
            options: Some(DevicePluginOptions::default()),
        };
        grpc::call(socket, REGISTER, &request).await
    }

    /// Takes our socket away, if it is nobody else's by now.
    fn put_away(&self) {
        if std::os::unix::net::UnixStream::connect(&self.own).is_err() {
            let _ = std::fs::remove_file(&self.own);
        }
    }
}

/// Asks the daemon each second whether it is there.
async fn watch_daemon(socket: PathBuf, health: watch::Sender<bool>) {
    let mut slow = 0;
    let mut trouble = Trouble::default();
    while !health.is_closed() {
        let path = socket.clone();
        let state = tokio::task::spawn_blocking(move || daemon::probe(&path)).await;
        let Ok(state) = state else {
            return;
        };
        let is_slow = matches!(state, State::Hung(_));
        slow = if is_slow { slow + 1 } else { 0 };
        if is_slow && slow < SLOW_ANSWERS_MAX {
            sleep(LOOK_AGAIN).await;
            continue;
        }
        let is_up = matches!(state, State::Running { .. });
        let is_new = health.send_if_modified(|it| std::mem::replace(it, is_up) != is_up);
        if !is_up {
            trouble.is(format!("no lanes to give: {state} ({})", socket.display()));
        } else if is_new {
            info!("sluiced answers");
            trouble = Trouble::default();
        }
        sleep(LOOK_AGAIN).await;
    }
}

async fn accept_all(
    listener: UnixListener,
    inventory: Rc<Inventory>,
    is_healthy: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((socket, _)) if connections.len() < CONNECTIONS_MAX => {
                connections.spawn_local(serve_connection(
                    socket,
                    Rc::clone(&inventory),
                    is_healthy.clone(),
                ));
            }
            Ok(_) => debug!("a connection too many"),
            Err(error) => {
                warn!("cannot accept: {}", reason(&error));
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}

async fn serve_connection(
    socket: UnixStream,
    inventory: Rc<Inventory>,
    is_healthy: watch::Receiver<bool>,
) {
    let mut connection = match grpc::accept(socket).await {
        Ok(connection) => connection,
        Err(error) => return debug!("no HTTP/2: {error}"),
    };
    // Requests end with their connection.
    let mut requests = JoinSet::new();
    while let Some(request) = connection.accept().await {
        while requests.try_join_next().is_some() {}
        match request {
            Ok((request, respond)) => {
                let (inventory, is_healthy) = (Rc::clone(&inventory), is_healthy.clone());
                requests.spawn_local(async move {
                    if let Err(error) = answer(request, respond, &inventory, is_healthy).await {
                        debug!("an answer was not taken: {error}");
                    }
                });
            }
            Err(error) => return debug!("the connection broke: {error}"),
        }
    }
}

async fn answer(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    inventory: &Inventory,
    is_healthy: watch::Receiver<bool>,
) -> Result<(), h2::Error> {
    let method = grpc::method(&request, SERVICE).map(ToOwned::to_owned);
    let mut body = request.into_body();
    let outcome = match method.as_deref() {
        Ok("GetDevicePluginOptions") => grpc::read_message::<Empty>(&mut body)
            .await
            .map(|_| grpc::frame(&DevicePluginOptions::default())),
        Ok("Allocate") => {
            let request = grpc::read_message::<AllocateRequest>(&mut body).await;
            let response = request.and_then(|request| inventory.allocate(&request));
            response.map(|response| {
                info!(containers = response.container_responses.len(), "given");
                grpc::frame(&response)
            })
        }
        Ok("ListAndWatch") => match grpc::read_message::<Empty>(&mut body).await {
            Ok(_) => return list(grpc::begin(&mut respond)?, inventory, is_healthy).await,
            Err(status) => Err(status),
        },
        Ok(_) => Err(Status::new(Code::Unimplemented, "there is no such method")),
        Err(status) => Err(status.clone()),
    };
    match outcome {
        Ok(framed) => {
            let mut stream = grpc::begin(&mut respond)?;
            grpc::send(&mut stream, framed).await?;
            grpc::end(&mut stream)
        }
        Err(status) => {
            debug!("refused: {status:?}");
            grpc::refuse(&mut respond, &status)
        }
    }
}

/// Lists all devices, and again whenever their health is another, until the other side has enough of it.
async fn list(
    mut stream: SendStream<Bytes>,
    inventory: &Inventory,
    mut is_healthy: watch::Receiver<bool>,
) -> Result<(), h2::Error> {
    loop {
        let devices = inventory.devices(*is_healthy.borrow_and_update());
        grpc::send(&mut stream, grpc::frame(&devices)).await?;
        tokio::select! {
            changed = is_healthy.changed() => if changed.is_err() {
                return grpc::end(&mut stream);
            },
            reset = std::future::poll_fn(|context| stream.poll_reset(context)) => {
                return reset.map(|_| ());
            }
        }
    }
}
