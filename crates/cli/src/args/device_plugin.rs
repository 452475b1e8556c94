//! The command line of `sluice device-plugin`.

use std::path::PathBuf;

use clap::Args;

use super::LogLevel;

/// Lets pods of a Kubernetes node ask for lanes by a resource.
///
/// Runs in the foreground, beside the node's sluiced. The kubelet is told of the resource, and mounts the
/// library and the folder of sluiced's socket into containers that ask for it, read-only, so that pods need
/// no hostPath volume. While no sluiced answers the node has none of the resource to give.
#[derive(Debug, Args)]
pub struct DevicePluginArgs {
    /// What pods write under resources.limits
    #[arg(long, value_name = "DOMAIN/NAME", default_value = "sluice.dev/lane", value_parser = resource)]
    pub resource: String,

    /// Containers of this node that may have it at once, 1 to 4096
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub count: u16,

    /// The folder of the library and of sluice on the node. Containers see it as /opt/sluice
    #[arg(long, value_name = "DIR", default_value = "/opt/sluice", value_parser = on_the_node)]
    pub library: String,

    /// The folder of the control socket on the node. Containers see it as /run/sluice
    #[arg(long, value_name = "DIR", default_value = "/run/sluice", value_parser = on_the_node)]
    pub run: String,

    /// The daemon's control socket, as this program sees it
    #[arg(long, value_name = "PATH", default_value = "/run/sluice/control.sock")]
    pub socket: PathBuf,

    /// The kubelet's folder for device plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    pub plugins: PathBuf,

    /// What it says on standard error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: LogLevel,
}

/// A name of an extended resource, as the API has it: a domain in lower case, a slash, and a name of at most
/// 63 characters. The kubelet takes none of Kubernetes' own domain.
fn resource(text: &str) -> Result<String, String> {
    let wrong =
        || Err("give a domain of your own and a name, as in sluice.example/lane".to_owned());
    let Some((domain, name)) = text.split_once('/') else {
        return wrong();
    };
    let ends_well =
        |part: &str| !part.starts_with(['-', '_', '.']) && !part.ends_with(['-', '_', '.']);
    let is_label = |part: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&part.len()) && part.chars().all(fits) && ends_well(part)
    };
    let is_name = (1..=63).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && ends_well(name);
    let is_domain = domain.len() <= 128 && domain.contains('.') && domain.split('.').all(is_label);
    let is_theirs = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    if !is_domain || !is_name || is_theirs {
        return wrong();
    }
    Ok(text.to_owned())
}

/// A path that the kubelet reads: it has no working directory in common with us.
fn on_the_node(text: &str) -> Result<String, String> {
    if text.starts_with('/') && !text.split('/').any(|part| part == "..") {
        Ok(text.to_owned())
    } else {
        Err("give the path on the node from its root on".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kubelet_would_refuse_are_refused() {
        for good in ["sluice.dev/lane", "a.example-1.org/Lane_2.x"] {
            assert_eq!(resource(good).as_deref(), Ok(good));
        }
        let long = format!("sluice.dev/{}", "n".repeat(64));
        for bad in [
            "lane",
            "/lane",
            "sluice.dev/",
            "sluice/lane",
            "Sluice.dev/lane",
            "sluice.dev/la/ne",
            "sluice..dev/lane",
            "-a.dev/lane",
            "sluice.dev/-lane",
            "kubernetes.io/lane",
            "node.kubernetes.io/lane",
            &long,
        ] {
            assert!(resource(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn folders_of_the_node_begin_at_its_root() {
        assert!(on_the_node("/opt/sluice").is_ok());
        assert!(on_the_node("opt/sluice").is_err());
        assert!(on_the_node("/opt/../etc").is_err());
    }
}
