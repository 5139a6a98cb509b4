//! Names the two grades of an emulated network, and says what each needs and emulates.

/// The kind of emulated network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Grade {
    /// Loopback, and servers that delay their answers. Needs no privileges. Connecting takes no
    /// time, and links cannot be cut.
    #[default]
    Rootless,
    /// Network namespaces with delayed and lost packets: kernel TCP, ICMP and cuts are real. Needs
    /// root and /dev/net/tun
    Tun,
}
