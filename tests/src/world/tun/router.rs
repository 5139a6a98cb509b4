//! The router: one thread that carries packets between all TUN devices. It delivers packets when
//! they are due, and records its lateness.
//!
//! The router runs at normal priority. In single runs with 50 concurrent handshakes, real-time
//! priority reduced the 95th percentile of its lateness from 1.8 ms to 0.3 ms. But with 800
//! concurrent handshakes, real-time priority increased the lateness of the endpoints from 6 ms to
//! 32 ms. The recorded lateness does not include that of the endpoints.

use std::io::{Error, ErrorKind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tun_rs::SyncDevice;

use super::delay_and_loss::{DuePacket, Switch, Traffic};
use super::device_and_routes::MTU;
use crate::world::lateness::Lateness;

/// Maximum number of packets that the router reads from one device, or delivers, at a time. The
/// limit keeps one device from starving the others.
const BATCH: usize = 64;
/// Maximum number of events that one call of epoll returns.
const EVENTS: usize = 64;
/// Epoll data of the timer and the stop event. The epoll data of a device is its index.
const DUE: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// A running router. Dropping it stops the router.
#[derive(Debug)]
pub(super) struct Router {
    stop: Arc<EventFd>,
    /// `None` after `end`.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state of the router's thread.
struct RouterLoop {
    devices: Vec<SyncDevice>,
    switch: Switch,
    epoll: Epoll,
    due: TimerFd,
    /// The expiry of the timer; `None` if the timer is not set.
    armed: Option<Instant>,
    lateness: Arc<Lateness>,
    traffic: Arc<Traffic>,
}

impl Router {
    pub(super) fn start(
        devices: Vec<SyncDevice>,
        switch: Switch,
        lateness: Arc<Lateness>,
        traffic: Arc<Traffic>,
    ) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an event queue")?;
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).context("make an event")?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let due = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).context("make a timer")?;
        let readable = |number| EpollEvent::new(EpollFlags::EPOLLIN, number);
        for (number, device) in (0..).zip(&devices) {
            epoll.add(device, readable(number)).context("watch a TUN device")?;
        }
        epoll.add(&due, readable(DUE)).context("watch the timer")?;
        epoll.add(&stop, readable(STOP)).context("watch for the end")?;
        let mut serve = RouterLoop { devices, switch, epoll, due, armed: None, lateness, traffic };
        let thread = std::thread::Builder::new().name("wan-router".to_owned());
        let thread = thread
            .spawn(move || {
                if let Err(error) = serve.run() {
                    tracing::error!(%error, "the router of the emulated network ended");
                }
            })
            .context("start the router's thread")?;
        Ok(Self { stop: Arc::new(stop), thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread and closes the devices.
    pub(super) fn end(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if let Err(error) = self.stop.write(1) {
            return tracing::warn!(%error, "the router could not be told to end");
        }
        if thread.join().is_err() {
            tracing::warn!("the router panicked");
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.end();
    }
}

impl RouterLoop {
    fn run(&mut self) -> nix::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut packet = vec![0_u8; MTU];
        loop {
            let more = self.hand_over();
            let timeout = if more { EpollTimeout::ZERO } else { EpollTimeout::NONE };
            if !more {
                self.arm()?;
            }
            let count = match self.epoll.wait(&mut events, timeout) {
                Err(Errno::EINTR) => 0,
                waited => waited?,
            };
            for event in &events[..count] {
                match event.data() {
                    STOP => return Ok(()),
                    DUE => self.disarm()?,
                    device => self.take_in(usize::try_from(device).unwrap_or(usize::MAX), &mut packet),
                }
            }
        }
    }

    /// Delivers packets that are due. Returns whether more packets may be due.
    fn hand_over(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(DuePacket { device, due, packet }) = self.switch.arrive(Instant::now()) else { return false };
            let sent = self.devices[device].send(&packet);
            self.lateness.note(Instant::now().saturating_duration_since(due));
            let counter = if sent.is_ok() { &self.traffic.carried } else { &self.traffic.overrun };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = sent {
                tracing::debug!(%error, device, "a TUN device took no packet");
            }
        }
        true
    }

    /// Sets the timer to the time at which the next packet is due.
    fn arm(&mut self) -> nix::Result<()> {
        let next = self.switch.next_due();
        if next == self.armed {
            return Ok(());
        }
        self.armed = next;
        let Some(next) = next else { return self.due.unset() };
        // The wait is at least one nanosecond, because zero would disable the timer.
        let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        self.due.set(Expiration::OneShot(TimeSpec::from_duration(wait)), TimerSetTimeFlags::empty())
    }

    /// Clears the expired timer, because epoll would otherwise report it again.
    fn disarm(&mut self) -> nix::Result<()> {
        self.armed = None;
        match self.due.wait() {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            waited => waited,
        }
    }

    fn take_in(&mut self, device: usize, packet: &mut [u8]) {
        for _ in 0..BATCH {
            match self.devices[device].recv(packet) {
                Ok(length) => self.switch.enter(Instant::now(), device, &packet[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.complain(device, &error),
            }
        }
    }

    fn complain(&self, device: usize, error: &Error) {
        self.traffic.overrun.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%error, device, "a TUN device gave no packet");
    }
}
