//! The kernel settings of every namespace.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;

/// Settings in every namespace, as paths below /proc/sys/net. A setting that the kernel does not
/// have is skipped.
const SETTINGS: [(&str, &str); 6] = [
    // Scenarios have no IPv6. With IPv6, the router would have to carry packets of neighbour
    // discovery.
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    // A connection must not reuse metrics of earlier connections, because runs would then influence
    // each other.
    ("ipv4/tcp_no_metrics_save", "1"),
    // Processes may send ICMP echo requests without root.
    ("ipv4/ping_group_range", "0 2147483647"),
    // In the agents' namespaces, the lab listens on the schedulers' ports, which come from the
    // host's range of ephemeral ports (by default 32768 to 60999). So the ephemeral ports of a
    // namespace must be lower.
    ("ipv4/ip_local_port_range", "1024 32767"),
    // Reverse path filtering is useless, because there is only one route.
    ("ipv4/conf/all/rp_filter", "0"),
];

/// Writes the settings of the calling thread's namespace.
pub(super) fn write_all() -> anyhow::Result<()> {
    SETTINGS.iter().try_for_each(|(setting, value)| write(setting, value))
}

fn write(setting: &str, value: &str) -> anyhow::Result<()> {
    let file = Path::new("/proc/sys/net").join(setting);
    match fs::write(&file, value) {
        // A kernel without IPv6 does not have the settings of IPv6.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        written => written.with_context(|| format!("write {value} to {}", file.display())),
    }
}
