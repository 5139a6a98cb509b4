//! The settings of the private Postgres.

use std::path::Path;

/// The port is only a part of the socket's file name, because the server does not listen on TCP.
pub(super) const PORT: u16 = 5432;

/// Settings of a small server that is reachable only through its socket.
pub(super) fn settings(socket_dir: &Path) -> Vec<String> {
    // `unix_socket_directories` is a list, so the path is quoted in case it contains a comma or a
    // blank.
    let socket_dir = socket_dir.to_string_lossy().replace('"', "\"\"");
    vec![
        "listen_addresses=".to_owned(),
        format!("unix_socket_directories=\"{socket_dir}\""),
        "unix_socket_permissions=0700".to_owned(),
        format!("port={PORT}"),
        "cluster_name=landfall".to_owned(),
        "max_connections=100".to_owned(),
        // 256 MB is enough for the indexes of a million open tasks. A small database uses little of
        // this memory.
        "shared_buffers=256MB".to_owned(),
        // When a page is first changed after a checkpoint, Postgres logs the whole page, which
        // makes frequent checkpoints expensive. A limit of 256 MB would cause a checkpoint every
        // second at full load.
        "max_wal_size=1GB".to_owned(),
        "jit=off".to_owned(),
        "fsync=on".to_owned(),
        "timezone=UTC".to_owned(),
        "log_timezone=UTC".to_owned(),
        // At the level `log`, the server's log omits errors of statements, because the scheduler
        // reports them.
        "log_min_messages=log".to_owned(),
        "log_checkpoints=off".to_owned(),
        // The default prefix, and the SQLSTATE, which reveals a full disk.
        "log_line_prefix=%m [%p] %e ".to_owned(),
    ]
}
