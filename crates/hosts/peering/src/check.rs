//! What is wrong with a configuration, beyond what can be read in its file.

use std::os::unix::fs::FileTypeExt;

use crate::config::{Authentication, Config, Network, Remark, Rule, cgroup};
use crate::identity::Identity;

impl Config {
    /// Everything that is wrong with the files that the configuration names, and what is allowed
    /// and seldom meant. Empty: nothing to say.
    pub fn check(&self) -> Vec<Remark> {
        let mut remarks = Vec::new();
        if self.authentication.is_some() {
            let errors = match Identity::load(self) {
                Ok(identity) => identity.problems().to_vec(),
                Err(error) => vec![error.to_string()],
            };
            remarks.extend(errors.into_iter().map(|text| Remark {
                is_error: true,
                text,
            }));
        }
        let captured = self.capture.as_ref().and_then(|it| it.cgroup.as_deref());
        let problems = [captured, self.discovery.cgroup.as_deref()];
        let problems = problems.into_iter().flatten().filter_map(cgroup::problem);
        remarks.extend(problems.map(|text| Remark {
            is_error: true,
            text,
        }));
        let mut warn = |text| {
            remarks.push(Remark {
                is_error: false,
                text,
            });
        };
        if self.authentication == Some(Authentication::None) {
            warn(
                "authentication = \"none\": whoever reaches the port can take part; \
                 write psk_file or certificate"
                    .to_owned(),
            );
        }
        if self.discovery.enabled && self.authentication == Some(Authentication::Psk { file: None })
        {
            warn(
                "[discovery] asks nobody without a key that all have: write psk_file in [daemon]"
                    .to_owned(),
            );
        }
        if let Some(text) = self.capture_remark(self.names_adapter()) {
            warn(text);
        }
        let all = self.rules.0.iter().position(Rule::is_about_all);
        if let Some(at) = all.filter(|at| at + 1 < self.rules.0.len()) {
            warn(format!(
                "the [[rule]] number {} is about all connections, so those behind it never count",
                at + 1
            ));
        }
        for window in &self.windows {
            let is_socket = std::fs::metadata(&window.path).map(|it| it.file_type().is_socket());
            let path = window.path.display();
            // In a guest it is the memory of a device.
            let is_device = window.path.starts_with("/sys");
            match is_socket {
                Ok(is_socket) if is_socket || is_device => {}
                Ok(_) => warn(format!(
                    "[[window]] {path} is neither a socket of 'sluice window serve' nor a PCI device's \
                     resource2, so no connection lies in it"
                )),
                Err(error) => warn(format!(
                    "[[window]] {path}: {error}; it is asked for until 'sluice window serve' runs"
                )),
            }
        }
        for window in self.windows.iter().filter(|it| it.users.is_empty()) {
            warn(format!(
                "[[window]] {} has no users, so no connection lies in it: write users = [\"…\"]",
                window.path.display()
            ));
        }
        for (at, peer) in self.peers.iter().enumerate() {
            for other in self.peers.iter().skip(at + 1) {
                let shared = peer.addresses.iter().find(|network| {
                    let overlaps = |theirs: &Network| network.overlaps(theirs);
                    other.addresses.iter().any(overlaps)
                });
                if let Some(network) = shared {
                    warn(format!(
                        "{network} is said of {} and, in part at least, of {}: the first counts",
                        peer.name, other.name
                    ));
                }
            }
        }
        remarks
    }
}
