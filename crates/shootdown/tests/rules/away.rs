//! Programs about virtual CPUs that their hypervisor stops.

use std::sync::Arc;

use loom::thread;
use shootdown::soft::{Config, Touch};

use crate::system::{System, finish, page_at};

fn guest(config: Config) -> Config {
    Config { is_guest: true, ..config }
}

/// CPU 1 was stopped while it used the space. CPU 0 flushes, and does not wait for it.
pub(crate) fn flush_while_stopped<const W: usize>(config: Config) {
    let system = System::<W>::active(guest(config));
    system.cpu(1).stop();
    finish(system.unmap(&system.cpu(0), 0));
    system.machine().free(&system.a, 0);
    let cpu = system.cpu(1);
    cpu.resume();
    assert_ne!(cpu.touch(0), Touch::Stale);
}

/// CPU 1 uses the page and is stopped while CPU 0 flushes, and frees the page as soon as the flush
/// is done.
pub(crate) fn stop_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::active(guest(config));
    let pending = system.race_reuse(|_, cpu| {
        assert_ne!(cpu.touch(0), Touch::Stale);
        cpu.stop();
    });
    system.cpu(1).resume();
    if let Some(pending) = pending {
        system.conclude(pending);
    }
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
}

/// CPU 1 returns and uses the page while CPU 0 flushes, and frees the page as soon as the flush is
/// done.
pub(crate) fn return_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::active(guest(config));
    system.cpu(1).stop();
    let pending = system.race_reuse(|_, cpu| {
        cpu.resume();
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    if let Some(pending) = pending {
        system.conclude(pending);
    }
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
}

/// CPU 1 is stopped again before it returns, while CPU 0 flushes, and frees the page as soon as the
/// flush is done.
pub(crate) fn stop_again_while_flushing<const W: usize>(config: Config) {
    let system = System::<W>::active(guest(config));
    system.cpu(1).stop();
    let pending = system.race_reuse(|_, cpu| {
        cpu.stop();
        cpu.resume();
        assert_ne!(cpu.touch(0), Touch::Stale);
    });
    if let Some(pending) = pending {
        system.conclude(pending);
    }
    assert_ne!(system.cpu(1).touch(0), Touch::Stale);
}

/// CPU 1 is stopped within a walk by software, and goes on with it, while CPU 0 unhooks the tables,
/// flushes, and frees them as soon as the flush is done.
pub(crate) fn stop_in_walk<const W: usize>(config: Config) {
    let system = System::<W>::active(guest(config));
    let pending = system.race(
        |system, cpu| {
            cpu.walk_by_software(&system.a, || {
                cpu.stop();
                cpu.resume();
            });
        },
        |cpu| {
            system.machine().unhook_tables(&system.a);
            let mut pending = cpu.pin().flush(&system.a, page_at(0).freeing_tables());
            if pending.poll() {
                system.machine().free_tables(&system.a);
                return None;
            }
            Some(pending)
        },
    );
    if let Some(pending) = pending {
        system.cpu(1).interrupt_point();
        finish(pending);
    }
    assert_eq!(system.machine().freed_table_walks(), 0);
}

/// As [`return_while_flushing`], while CPU 2 flushes another page. Each flush must be ordered with
/// the return, also the one that finds the request of the other.
pub(crate) fn return_while_two_flush<const W: usize>(config: Config) {
    let system = System::<W>::active(guest(Config { cpus: 3, ..config }));
    assert_eq!(system.cpu(1).touch(1), Touch::Ok);
    system.cpu(1).stop();
    let other = Arc::clone(&system);
    let flushing = thread::spawn(move || {
        let mut pending = other.unmap(&other.cpu(2), 1);
        if pending.poll() {
            other.machine().free(&other.a, 1);
        } else {
            std::mem::forget(pending);
        }
    });
    let pending = system.race_reuse(|_, cpu| {
        cpu.resume();
        assert_ne!(cpu.touch(0), Touch::Stale);
        assert_ne!(cpu.touch(1), Touch::Stale);
    });
    flushing.join().unwrap();
    if let Some(pending) = pending {
        system.conclude(pending);
    }
}
