//! What the kubelet is answered, without a clock or a socket.

use std::collections::{HashMap, HashSet};

use super::grpc::{Code, Status};
use super::messages::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse, Device,
    HEALTHY, ListAndWatchResponse, Mount, UNHEALTHY,
};

/// Where containers have the library and `sluice`: as on the node, so that one command fits both.
const LIBRARY: &str = "/opt/sluice";
/// Where they have the daemon's socket.
const RUN: &str = "/run/sluice";

/// What there is to give, and what it consists of.
#[derive(Debug, Clone)]
pub struct Inventory {
    pub count: u16,
    /// The folder of the library on the node.
    pub library: String,
    /// The folder of the socket on the node.
    pub run: String,
    /// The socket's name in that folder.
    pub socket_name: String,
}

impl Inventory {
    /// The number behind an id of ours.
    fn number(&self, id: &str) -> Option<u16> {
        let digits = id.strip_prefix("lane-")?;
        let number: u16 = digits.parse().ok().filter(|number| *number < self.count)?;
        // "lane-007" and "lane-+7" are no second names of "lane-7".
        (digits == number.to_string()).then_some(number)
    }

    /// Every device, which all have what the daemon has.
    pub fn devices(&self, is_healthy: bool) -> ListAndWatchResponse {
        let health = if is_healthy { HEALTHY } else { UNHEALTHY };
        let devices = (0..self.count).map(|number| Device {
            id: format!("lane-{number}"),
            health: health.to_owned(),
        });
        ListAndWatchResponse {
            devices: devices.collect(),
        }
    }

    /// What each container is given. All of them, or none: what is wrong with one is wrong with the request.
    pub fn allocate(&self, request: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let mut taken = HashSet::new();
        let mut container_responses = Vec::new();
        for container in &request.container_requests {
            self.check(container, &mut taken)?;
            container_responses.push(self.container());
        }
        Ok(AllocateResponse {
            container_responses,
        })
    }

    fn check<'a>(
        &self,
        container: &'a ContainerAllocateRequest,
        taken: &mut HashSet<&'a str>,
    ) -> Result<(), Status> {
        let wrong = |what: &str| Err(Status::new(Code::InvalidArgument, what));
        if container.devices_ids.is_empty() {
            return wrong("a container without a device");
        }
        for id in &container.devices_ids {
            if self.number(id).is_none() {
                return wrong("there is no such device");
            }
            if !taken.insert(id.as_str()) {
                return wrong("a device is asked for twice");
            }
        }
        Ok(())
    }

    /// Read-only: a container could put a library or a daemon of its own in the place of the node's.
    fn container(&self) -> ContainerAllocateResponse {
        let mount = |container_path: &str, host_path: &str| Mount {
            container_path: container_path.to_owned(),
            host_path: host_path.to_owned(),
            read_only: true,
        };
        let socket = format!("{RUN}/{}", self.socket_name);
        ContainerAllocateResponse {
            envs: HashMap::from([("SLUICE_SOCKET".to_owned(), socket)]),
            mounts: vec![mount(LIBRARY, &self.library), mount(RUN, &self.run)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory() -> Inventory {
        Inventory {
            count: 12,
            library: "/node/opt".to_owned(),
            run: "/node/run".to_owned(),
            socket_name: "control.sock".to_owned(),
        }
    }

    fn request(containers: &[&[&str]]) -> AllocateRequest {
        let container = |ids: &&[&str]| ContainerAllocateRequest {
            devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        AllocateRequest {
            container_requests: containers.iter().map(container).collect(),
        }
    }

    #[test]
    fn each_container_gets_the_same_read_only() {
        let answer = inventory()
            .allocate(&request(&[&["lane-0"], &["lane-11", "lane-3"]]))
            .unwrap();
        assert_eq!(answer.container_responses.len(), 2);
        for container in &answer.container_responses {
            assert_eq!(container.envs["SLUICE_SOCKET"], "/run/sluice/control.sock");
            let mounts: Vec<_> = container.mounts.iter().collect();
            assert!(mounts.iter().all(|mount| mount.read_only));
            assert_eq!(mounts[0].container_path, "/opt/sluice");
            assert_eq!(mounts[0].host_path, "/node/opt");
            assert_eq!(mounts[1].container_path, "/run/sluice");
            assert_eq!(mounts[1].host_path, "/node/run");
        }
    }

    #[test]
    fn nothing_is_given_for_what_was_not_offered() {
        for containers in [
            &[&["lane-12"][..]][..],
            &[&["lane-0"], &["lane-65536"]],
            &[&["lane-00"]],
            &[&["lane-+1"]],
            &[&["lane--1"]],
            &[&["lane-"]],
            &[&["../../etc"]],
            &[&[""]],
            &[&[]],
            &[&["lane-1", "lane-1"]],
            &[&["lane-1"], &["lane-1"]],
        ] {
            let refused = inventory().allocate(&request(containers)).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{containers:?}");
        }
    }

    #[test]
    fn every_device_that_is_listed_can_be_asked_for() {
        let list = inventory().devices(true);
        assert_eq!(list.devices.len(), 12);
        for device in &list.devices {
            assert_eq!(device.health, HEALTHY);
            assert!(inventory().allocate(&request(&[&[&device.id]])).is_ok());
        }
        let list = inventory().devices(false);
        assert!(list.devices.iter().all(|it| it.health == UNHEALTHY));
    }
}
