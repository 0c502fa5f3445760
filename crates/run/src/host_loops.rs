//! The loops of `shootdown calibrate`, as workloads: a machine file that quotes what they take on
//! the real machine can be checked against itself.

use shootdown_designs::Design;
use shootdown_sim::Machine;
use shootdown_sim::machine::Idle;

use crate::text::{Cell, CellError, Text};

/// A loop that runs on the host and in the simulator.
#[derive(Clone, Copy, Debug)]
pub struct HostLoop {
    /// The key in the section `measured` of a machine file.
    pub key: &'static str,
    /// The name of the loop, for people.
    pub about: &'static str,
    source: &'static str,
    /// The number of a machine that is fitted to the loop. Other loops test the file.
    fitted: Fitted,
    /// Number of times that a turn of the loop has the fitted cost.
    times: f64,
    /// The part of the measured time to which the number is fitted. It is less than 1 for the first
    /// read of a page, which is cold. The fault after a discard is warm, and costs the same here,
    /// so that the difference is shared between these two loops.
    share: f64,
}

/// The number of a machine that is fitted to a loop.
#[derive(Clone, Copy, Debug)]
enum Fitted {
    Number(&'static str),
    /// The time to wake from the first idle state.
    IdleExit,
    None,
}

macro_rules! with_spinner {
    ($body:literal) => {
        concat!(
            "thread main {\n pin 0\n map page 1\n write page\n spawn spinner\n compute 50us\n
             time { repeat 400 {\n",
            $body,
            "\n count } }\n join\n }
             thread spinner { pin 1\n repeat for 100ms { compute 50us } }"
        )
    };
}

macro_rules! pipes {
    ($cpu:literal) => {
        concat!(
            "thread main { pin 0\n fork pong\n compute 50us\n
             time { repeat 200 { wake pong\n block\n count } }\n join }
             thread pong { pin ",
            $cpu,
            "\n repeat 200 { block\n wake main } }"
        )
    };
}

/// All loops, in an order in which each can be fitted after those before it. Of two loops for one
/// number, the later decides, and the other tests the file.
pub const HOST_LOOPS: [HostLoop; 16] = [
    HostLoop {
        key: "syscall_ns",
        about: "system call (getppid)",
        source: "thread main { pin 0\n time { repeat 400 { syscall\n count } } }",
        fitted: Fitted::Number("kernel.syscall_ns"),
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "first_read_ns",
        about: "first read of a page",
        source: "thread main { pin 0\n map pages 2048\n
                 time { for page in 0..2048 { read pages[page]\n count } } }",
        fitted: Fitted::Number("kernel.fault_ns"),
        times: 1.0,
        share: 0.95,
    },
    HostLoop {
        key: "first_write_ns",
        about: "write of a discarded page",
        source: "thread main { pin 0\n map pages 2048\n write pages\n discard pages\n
                 time { for page in 0..2048 { write pages[page]\n count } } }",
        fitted: Fitted::Number("kernel.new_page_ns"),
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "mprotect_absent_ns",
        about: "mprotect twice, nothing present",
        source: "thread main { pin 0\n map page 1\n
                 time { repeat 400 { protect page read\n protect page write\n count } } }",
        fitted: Fitted::Number("kernel.areas_ns"),
        times: 2.0,
        share: 1.0,
    },
    HostLoop {
        key: "map_ns",
        about: "mmap and munmap of an untouched page",
        source: "thread main { pin 0\n time { repeat 400 { map page 1\n unmap page\n count } } }",
        fitted: Fitted::None,
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "discard_absent_ns",
        about: "madvise(DONTNEED), nothing present",
        source: "thread main { pin 0\n map page 1\n
                 time { repeat 400 { discard page\n count } } }",
        fitted: Fitted::Number("kernel.find_area_ns"),
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "mprotect_present_ns",
        about: "mprotect twice, a page present",
        source: "thread main { pin 0\n map page 1\n write page\n
                 time { repeat 400 { protect page read\n protect page write\n count } } }",
        fitted: Fitted::Number("kernel.flush_ns"),
        times: 2.0,
        share: 1.0,
    },
    HostLoop {
        key: "discard_ns",
        about: "write and madvise(DONTNEED)",
        source: "thread main { pin 0\n map page 1\n
                 time { repeat 400 { write page\n discard page\n count } } }",
        fitted: Fitted::Number("kernel.unmap_page_ns"),
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "discard_many_ns",
        about: "madvise(DONTNEED) of 512 pages, each",
        source: "thread main { pin 0\n map pages 512\n
                 repeat 4 { write pages\n time { discard pages\n count 512 } } }",
        fitted: Fitted::Number("kernel.unmap_page_ns"),
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "read_around_ns",
        about: "read and madvise of a page of a file, neighbours mapped",
        source: "memory 1GiB read_ahead\n
                 thread main { pin 0\n map pages 16 private file\n read pages\n
                 time { repeat 400 { read pages[7]\n discard pages[7]\n count } } }",
        fitted: Fitted::Number("kernel.around_fault_ns"),
        times: 15.0,
        share: 1.0,
    },
    HostLoop {
        key: "file_discard_ns",
        about: "write, madvise and read of each page of a file (tlb_flush1)",
        source: "memory 1GiB read_ahead\n
                 thread main { pin 0\n map pages 512 private file\n read pages\n
                 time { for page in 0..512 { write pages[page]\n discard pages[page]\n
                 read pages[page]\n count } } }",
        fitted: Fitted::None,
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "fork_page_ns",
        about: "fork, each written page",
        source: "thread main { pin 0\n map few 2048\n write few\n
                 time small { fork child\n count 2048 }\n join\n map more 6144\n write few\n
                 write more\n time large { fork child\n count 8192 }\n join }
                 thread child { pin 1 }",
        fitted: Fitted::Number("kernel.fork_entry_ns"),
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "mprotect_remote_ns",
        about: "mprotect twice, another CPU in user mode",
        source: with_spinner!("protect page read\n protect page write"),
        fitted: Fitted::Number("interrupt.deliver_socket_ns"),
        times: 2.0,
        share: 1.0,
    },
    HostLoop {
        key: "discard_remote_ns",
        about: "write and madvise, another CPU in user mode",
        source: with_spinner!("write page\n discard page"),
        fitted: Fitted::None,
        times: 1.0,
        share: 1.0,
    },
    HostLoop {
        key: "pipe_local_ns",
        about: "round trip through pipes on one CPU",
        source: pipes!("0"),
        fitted: Fitted::Number("kernel.context_switch_ns"),
        times: 2.0,
        share: 1.0,
    },
    HostLoop {
        key: "pipe_remote_ns",
        about: "round trip through pipes between two",
        source: pipes!("1"),
        fitted: Fitted::IdleExit,
        times: 2.0,
        share: 1.0,
    },
];

/// Number of times that all numbers are fitted, one after the other. A number changes the loops
/// after its own, and a little those before.
const ROUNDS: u32 = 6;

impl HostLoop {
    /// Returns the loop of a key.
    #[must_use]
    pub fn of(key: &str) -> Option<&'static Self> {
        HOST_LOOPS.iter().find(|it| it.key == key)
    }

    /// Returns the number of a machine that is fitted to the loop, as `SECTION.KEY`.
    #[must_use]
    pub fn fitted_number(&self, machine: &Machine) -> Option<String> {
        match (self.fitted, &machine.idle) {
            (Fitted::Number(key), _) => Some(key.to_owned()),
            (Fitted::IdleExit, Idle::States(states)) => {
                Some(format!("idle.{}.exit_us", states.first()?.name))
            }
            _ => None,
        }
    }

    /// Returns the time of a turn on a machine, under the model of the kernel on which the loops
    /// were measured.
    ///
    /// # Errors
    ///
    /// If the loop cannot run, for example because the machine has one CPU.
    ///
    /// # Panics
    ///
    /// Never: the texts are valid.
    pub fn time_ns(&self, machine: &Machine) -> Result<f64, CellError> {
        let text = Text::parse(self.key, self.source).expect("a test parses each loop");
        let cell = Cell { workload: &text, machine, design: Design::LINUX_7_0, seed: 1 };
        let rows = cell.run()?;
        let [first, last] = [&rows[0], &rows[rows.len() - 1]].map(|it| (it.time_ns, it.operations));
        // Of two intervals, the second has more of the operation: what it takes more counts.
        let (time_ns, operations) = if rows.len() == 1 {
            first
        } else {
            (last.0.saturating_sub(first.0), last.1 - first.1)
        };
        Ok(time_ns as f64 / operations.max(1) as f64)
    }
}

/// Fits numbers of a machine to times of loops on a real machine, each number to one loop. A number
/// that would be negative becomes 0.
///
/// # Errors
///
/// If a loop cannot run on the machine.
pub fn fit(machine: &Machine, measured: &[(&HostLoop, f64)]) -> Result<Machine, CellError> {
    let mut machine = machine.clone();
    for _ in 0..ROUNDS {
        for (host_loop, wanted_ns) in measured {
            let Some(key) = host_loop.fitted_number(&machine) else { continue };
            let wanted_ns = wanted_ns * host_loop.share;
            let missing_ns = (wanted_ns - host_loop.time_ns(&machine)?) / host_loop.times;
            let is_us = key.ends_with("_us");
            let value = value_of(&machine, &key) + missing_ns / if is_us { 1e3 } else { 1.0 };
            // The digits that a file has.
            let value = (value.max(0.0) * 1e3).round() / 1e3;
            if let Ok(fitted) = machine.with_number(&key, value) {
                machine = fitted;
            }
        }
    }
    Ok(machine)
}

/// Returns the value of a machine's number, which is named as `SECTION.KEY`.
#[must_use]
pub fn value_of(machine: &Machine, key: &str) -> f64 {
    let numbers = machine.numbers().iter();
    let mut named = numbers.filter(|it| key == format!("{}.{}", it.section, it.key));
    named.next().map_or(0.0, |number| number.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_parses() {
        for HostLoop { key, source, .. } in HOST_LOOPS {
            assert!(Text::parse(key, source).is_ok(), "{key}");
        }
    }

    #[test]
    fn loops_take_as_long_as_on_their_host() {
        let file = include_str!("../../../machines/emerald-rapids-kvm.toml");
        let machine = Machine::from_toml(file).expect("a valid file");
        assert_eq!(machine.measured.len(), 9);
        for measured in &machine.measured {
            let time_ns = HostLoop::of(&measured.key).expect("a loop").time_ns(&machine).unwrap();
            let percent = 100.0 * (time_ns / measured.value - 1.0);
            println!("{}: {percent:+.1} %", measured.key);
            assert!(percent.abs() <= 10.0, "{}: {percent:+.1} %", measured.key);
        }
    }
}
