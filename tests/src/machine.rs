//! Reads from /proc how busy the machine is, and the memory and processor time of processes. Raises
//! the limit on open files. Finds free ports.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The machine's processor time since boot, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    idle: u64,
    total: u64,
}

impl CpuTime {
    /// The current values; `None` if /proc does not provide them.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        // The columns are user nice system idle iowait irq softirq steal. `user` includes the time
        // of guest systems.
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { idle, total: ticks.iter().take(8).sum() })
    }

    /// The idle fraction, 0 to 1, of the processor time since `earlier`.
    pub fn idle_since(self, earlier: Self) -> f64 {
        share(self.idle.saturating_sub(earlier.idle), self.total.saturating_sub(earlier.total))
    }
}

/// A port of loopback for a program that cannot choose one itself.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

/// `part` as a fraction of `whole`; 1 if `whole` is 0.
fn share(part: u64, whole: u64) -> f64 {
    let float = |count: u64| u32::try_from(count).map_or(f64::from(u32::MAX), f64::from);
    if whole == 0 { 1.0 } else { float(part) / float(whole) }
}

/// The machine's load average of the last minute.
pub fn load_average() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("read the load")?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

/// The peak memory of a process, in bytes; `None` if the process has ended.
pub fn peak_memory(pid: Pid) -> Option<u64> {
    field_kib(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmHWM:")
}

/// The current memory of a process, in bytes; `None` if the process has ended.
pub fn resident_memory(pid: Pid) -> Option<u64> {
    field_kib(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// The main process of the Postgres with the data directory `cluster`; `None` if Postgres is not
/// running.
pub fn postmaster(cluster: &Path) -> Option<Pid> {
    let pid_file = fs::read_to_string(cluster.join("postmaster.pid")).ok()?;
    Some(Pid::from_raw(pid_file.lines().next()?.trim().parse().ok()?))
}

/// The memory in bytes of the Postgres with the data directory `cluster`: the sum of the
/// proportional set sizes of its processes. In this sum, shared buffers count once. `None` if /proc
/// does not report the sizes.
pub fn postgres_memory(cluster: &Path) -> Option<u64> {
    let postmaster = postmaster(cluster)?;
    let pids = children(postmaster).into_iter().chain([postmaster]);
    let shares =
        pids.filter_map(|pid| field_kib(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:"));
    Some(shares.sum()).filter(|sum| *sum > 0)
}

pub fn children(parent: Pid) -> Vec<Pid> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
}

/// Two processor times in seconds: of a process, and of all its children that have ended.
pub fn processor_s(pid: Pid) -> anyhow::Result<(f64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("read a process's times")?;
    // Split after the process name, because the name may contain any character. The times are
    // fields 14 to 17 of the line.
    let (_, fields) = stat.rsplit_once(')').context("a name in parentheses")?;
    let times = fields.split_whitespace().skip(11).take(4).map(str::parse);
    let times: Vec<f64> = times.collect::<Result<_, _>>().context("read a process's times")?;
    let &[user, system, ended_user, ended_system] = times.as_slice() else { anyhow::bail!("four times in {stat}") };
    let second = sysconf(SysconfVar::CLK_TCK)?.context("the ticks of a second")?;
    let second = f64::from(i32::try_from(second)?);
    Ok(((user + system) / second, (ended_user + ended_system) / second))
}

/// The processor time in seconds of a process and all its children, including ended children.
pub fn family_processor_s(parent: Pid) -> anyhow::Result<f64> {
    // A child that ended after it was listed is included in `ended`. A child that ends after its
    // time was read counts twice.
    let children: f64 = children(parent).into_iter().filter_map(|pid| Some(processor_s(pid).ok()?.0)).sum();
    let (own, ended) = processor_s(parent)?;
    Ok(children + own + ended)
}

/// Reads a field that a /proc file gives in kB, and converts it to bytes.
fn field_kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Raises the limit on open files to the hard limit, because a thousand listeners and their
/// connections exceed the default.
pub fn raise_file_limit() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("read the limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of open files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_share_is_of_the_time_between_two_readings() {
        let earlier = CpuTime::parse("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1").unwrap();
        let later = CpuTime::parse("cpu  150 0 130 710 110 0 0 0 0 0\ncpu0 1").unwrap();
        assert!((later.idle_since(earlier) - 0.2).abs() < 1e-9);
        assert!(CpuTime::now().is_some());
    }

    #[test]
    fn this_process_has_held_some_memory() {
        let own = Pid::this();
        // The peak is read after the current memory, because other tests in this process may
        // allocate memory between the two reads.
        let now = resident_memory(own).unwrap();
        let peak = peak_memory(own).unwrap();
        assert!(now > 1 << 20 && peak >= now, "{peak} {now}");
        assert!(processor_s(own).unwrap().0 >= 0.0);
        assert_eq!(field_kib("VmPeak: 5 kB\nVmHWM:\t   12 kB\n", "VmHWM:"), Some(12 << 10));
    }
}
