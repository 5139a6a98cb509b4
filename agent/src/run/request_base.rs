//! Decides from the configuration how the agent sends requests: from which address, with which name
//! server and user agent, and to which networks.

use crate::config::Config;
use crate::net;
use crate::net::request_context::RequestBase;

pub(super) fn request_base(config: &Config) -> anyhow::Result<RequestBase> {
    for net in &config.allow_net {
        tracing::warn!(%net, "{}", net::guard::OPEN);
    }
    let user_agent = config.contact_url.as_deref().map(net::user_agent::UserAgent::new).transpose()?;
    Ok(RequestBase {
        guard: net::guard::Guard::new(config.allow_net.clone()).with_beacons(config.beacon.allow_net.clone()),
        resolver: config.resolver()?,
        bind: config.bind,
        tls: net::tls::tls_config(config.extra_ca.as_deref())?,
        user_agent,
    })
}
