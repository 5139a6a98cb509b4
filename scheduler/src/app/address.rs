//! The addresses of a scheduler: binds its listening address, and derives the address to which
//! agents connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::{TcpListener, TcpSocket};

/// The HOST:PORT to which agents connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertisedAddress {
    pub(crate) host: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not HOST:PORT")]
pub struct NotAdvertisable(String);

impl FromStr for AdvertisedAddress {
    type Err = NotAdvertisable;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || NotAdvertisable(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(refused)?;
        match url::Host::parse(host).map_err(|_| refused())? {
            url::Host::Domain(name) => Ok(Self { host: name, port }),
            url::Host::Ipv4(ip) => Ok(Self { host: ip.to_string(), port }),
            url::Host::Ipv6(ip) => Ok(Self { host: ip.to_string(), port }),
        }
    }
}

impl AdvertisedAddress {
    /// The address to which agents connect. If none is advertised, it is derived from the listening
    /// address.
    pub(crate) fn of(listen: SocketAddr, advertise: Option<&Self>) -> Self {
        advertise.cloned().unwrap_or_else(|| {
            let named = listen.ip().is_unspecified().then(host_name).flatten();
            Self { host: named.unwrap_or_else(|| local(listen).ip().to_string()), port: listen.port() }
        })
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
    }
}

/// Maximum number of connections that wait until the scheduler accepts them. If more wait, a new
/// client repeats its first packet only after a second.
const BACKLOG: u32 = 4096;

fn listen_on(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Listens on this address. The errors say what the operator can do.
pub(crate) fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    listen_on(listen).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "the address {listen} is already in use: stop the process that listens there, or choose another with \
             --listen"
        ),
        std::io::ErrorKind::AddrNotAvailable => {
            anyhow::anyhow!("this machine does not have the address {listen}: choose another with --listen")
        }
        _ => anyhow::Error::new(error).context(format!("listen on {listen}")),
    })
}

/// The name of this machine; `None` if a certificate or a URL cannot contain the name.
pub(in crate::app) fn host_name() -> Option<String> {
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    match url::Host::parse(&name) {
        Ok(url::Host::Domain(name)) => Some(name),
        _ => None,
    }
}

/// The address at which this machine itself can reach the scheduler.
pub(crate) fn local(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_address_is_a_host_and_a_port() {
        for (text, url) in [
            ("scheduler.example.org:7171", "https://scheduler.example.org:7171"),
            ("192.0.2.7:443", "https://192.0.2.7:443"),
            ("[2001:db8::7]:7171", "https://[2001:db8::7]:7171"),
        ] {
            assert_eq!(text.parse::<AdvertisedAddress>().unwrap().url("https"), url);
        }
        for text in ["example.org", "example.org:0", "example.org:99999", ":7171", "a b:7171", "https://x:1"] {
            assert_eq!(text.parse::<AdvertisedAddress>(), Err(NotAdvertisable(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn this_machine_dials_loopback_where_every_address_is_listened_on() {
        assert_eq!(local("0.0.0.0:7171".parse().unwrap()).to_string(), "127.0.0.1:7171");
        assert_eq!(local("[::]:7171".parse().unwrap()).to_string(), "[::1]:7171");
        assert_eq!(local("192.0.2.7:7171".parse().unwrap()).to_string(), "192.0.2.7:7171");
    }
}
