//! Checks the user that runs the scheduler.

use nix::unistd::{Uid, User};

use super::check_result::CheckResult;

const CHECK: &str = "user";
/// The file that contains the lowest port on which every user may listen.
const UNPRIVILEGED: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// Facts about users. The scheduler runs as the owner of its data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AccountFacts {
    /// The user who runs this command: id and name.
    pub(super) own: (Uid, String),
    /// The user who runs the scheduler: id and name.
    pub(super) scheduler: (Uid, String),
    /// The scheduler's port, and whether the scheduler starts a private Postgres; `None` if
    /// unknown.
    pub(super) needs: Option<(u16, bool)>,
    /// The lowest port on which every user may listen.
    pub(super) first_port: u16,
}

impl AccountFacts {
    pub(super) fn of(scheduler: Uid, needs: Option<(u16, bool)>) -> Self {
        let first_port = std::fs::read_to_string(UNPRIVILEGED).ok().and_then(|text| text.trim().parse().ok());
        let own = Uid::effective();
        Self {
            own: (own, name(own)),
            scheduler: (scheduler, name(scheduler)),
            needs,
            first_port: first_port.unwrap_or(1024),
        }
    }
}

/// The name of a user, or the number of a user without a name.
pub(super) fn name(uid: Uid) -> String {
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

pub(super) fn judge(facts: &AccountFacts) -> CheckResult {
    let AccountFacts { own: (own, me), scheduler: (scheduler, runs), needs, first_port } = facts;
    if own != scheduler && !own.is_root() {
        let text = format!("you are {me}, but the data directory belongs to {runs}");
        return CheckResult::wrong(CHECK, text, "run this command as root or as that user");
    }
    if let Some((port, _)) = needs.filter(|(port, _)| port < first_port && *port != 0 && !scheduler.is_root()) {
        return CheckResult::wrong(
            CHECK,
            format!("{runs} may not listen on port {port}: only root may use ports below {first_port}"),
            "choose another port with --listen, or add AmbientCapabilities=CAP_NET_BIND_SERVICE to the unit \
             (`systemctl edit landfall`)",
        );
    }
    let private = needs.is_some_and(|(_, private)| private);
    CheckResult::ok(
        CHECK,
        match (scheduler.is_root(), own == scheduler) {
            (true, _) if private => "the scheduler runs as root, its private Postgres as the user postgres".to_owned(),
            (true, _) => "the scheduler runs as root".to_owned(),
            (false, true) => format!("the scheduler runs as {runs}"),
            (false, false) => format!("the scheduler runs as {runs}, who owns the data directory; you are root"),
        },
    )
}
