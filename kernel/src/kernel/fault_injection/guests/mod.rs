//! Scenarios of a hypervisor: it changes guest memory while virtual CPUs run on two other CPUs.
//!
//! A guest loads a word through its own page table (stage 1) and the hypervisor's (stage 2) until
//! the word changes. When the flush of the old page is complete, the page has a new owner, which
//! writes to it. A guest that loads the new owner's word has used a stale translation.

mod engine;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shootdown::{Extent, PinnedCpu, Root, Space};
use shootdown_hw::{LastVcpu, Processor as _, Vcpu};
use shootdown_vm::{EMPTY, Format, Frame, Leaf, Marks, Protection};

use crate::kernel::arch::{
    Arch, Architecture, Interrupt, Status, Task, User, UserExit, guest, set_interrupt_handler,
};
use crate::kernel::boot_memory::{BootMemory, set_entry};
use crate::kernel::console::println;
use crate::kernel::end::end;
use crate::kernel::fault_injection::TIMES;
use crate::kernel::fault_injection::fault::{self, Fault};
use crate::kernel::fault_injection::scenarios::{Verdict, Visibility};
use crate::kernel::fault_injection::user::wait_until;
use crate::kernel::memory::page;
use crate::kernel::sync::{Mutex, masked};
use Visibility::{Absent, Detected, Masked};
use engine::{Machine, engine, processor, with_pinned};

/// The visibility of a fault on `AArch64` and on RISC-V.
type Visibilities = [Visibility; 2];

struct Scenario {
    name: &'static str,
    run: fn(&mut BootMemory) -> Verdict,
    faults: &'static [(Fault, Visibilities)],
}

const EXIT_DROPS: Visibility = Masked("all is dropped at each exit of a guest");
const ONE_FENCE: Visibility = Absent("one instruction drops both");
const PART_KEPT: Visibilities = [Detected, ONE_FENCE];
const KEPT_WHILE_AWAY: Visibilities = [Detected, EXIT_DROPS];

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "runs-a-guest-all-the-time",
        run: runs_all_the_time,
        faults: &[
            (Fault::BroadcastsAreRefused, [Detected; 2]),
            (Fault::OthersKeepAll, [Detected; 2]),
            (Fault::CombinedIsKept, PART_KEPT),
        ],
    },
    Scenario {
        name: "comes-back-to-a-guest",
        run: comes_back,
        faults: &[(Fault::OthersKeepAll, KEPT_WHILE_AWAY), (Fault::CombinedIsKept, PART_KEPT)],
    },
    Scenario {
        name: "walks-a-guests-table-that-is-replaced",
        run: walks_a_replaced_table,
        faults: &[
            (Fault::OthersKeepAll, KEPT_WHILE_AWAY),
            (Fault::Stage2IsKept, [Detected, ONE_FENCE]),
        ],
    },
    Scenario {
        name: "is-given-back-a-virtual-cpu",
        run: is_given_back_a_vcpu,
        faults: &[(Fault::MoveIsIgnored, KEPT_WHILE_AWAY)],
    },
];

/// Addresses of the guest's program: its code, a page, and another page in the same table.
const CODE: usize = 0x40_0000;
const PAGE: usize = 0x80_0000;
const SIBLING: usize = PAGE + 0x8000;
/// The page of counts, and of the count of a virtual CPU.
const COUNTS: usize = PAGE + 0x1_0000;

const OLD: u64 = 0x01d;
const NEW: u64 = 0x4e77;
/// The word that a page's new owner writes.
const REUSED: u64 = 0x5ec;

const CPUS: usize = 3;
const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

type Tables = <Arch as Architecture>::Format;

/// A guest with two virtual CPUs. The addresses of its memory are those of the frames, except that
/// a page whose frame was replaced keeps its address.
struct Guest {
    space: Space<Machine>,
    stage_1: Frame,
    stage_2: Frame,
    /// The frames of [`PAGE`], and of the table that maps it.
    page: Frame,
    table: Frame,
    counts: Frame,
    vcpus: [Vcpu; 2],
    last: [LastVcpu; CPUS],
}

/// A run of a virtual CPU on a CPU.
#[derive(Clone, Copy)]
struct Run {
    guest: &'static Guest,
    vcpu: usize,
    /// Offset in the guest's code at which it starts.
    start: usize,
    address: usize,
    /// The run ends when the guest has loaded another word.
    until_not: u64,
}

/// A command for a CPU.
#[derive(Clone, Copy)]
enum Command {
    Run(Run),
    /// Leaves the guest, and invalidates all that a fault has left.
    Empty,
}

/// The commands of CPUs 1 and 2, which clear them when they have executed them, and the words that
/// their guests have loaded last.
static COMMANDS: [Mutex<Option<Command>>; CPUS] = [const { Mutex::new(None) }; CPUS];
static FOUND: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
/// CPUs that are online. Each CPU increments it with release; `run` loads it with acquire.
static ONLINE: AtomicU32 = AtomicU32::new(0);

/// Runs all scenarios with all faults, and ends the run. Call this on the first CPU.
pub(crate) fn run(memory: &mut BootMemory, cpus: u32) -> ! {
    assert!(cpus as usize >= CPUS, "guests need {CPUS} CPUs");
    set_interrupt_handler(|interrupt| {
        if interrupt == Interrupt::Flush {
            with_pinned(PinnedCpu::handle_flush_ipi);
        }
    });
    engine::set_up(memory, cpus);
    for cpu in 1..CPUS as u32 {
        Arch::start_cpu(cpu, memory.stack_end());
    }
    engine::come_online();
    wait_until(|| ONLINE.load(Ordering::Acquire) == CPUS as u32 - 1);
    let mut wrong = 0;
    for scenario in SCENARIOS {
        let mut run = |fault, visibility| {
            wrong += usize::from(!is_right(memory, scenario, fault, visibility));
        };
        run(Fault::None, Detected);
        for &(fault, [on_aarch64, on_riscv64]) in scenario.faults {
            run(fault, if Arch::NAME == "aarch64" { on_aarch64 } else { on_riscv64 });
        }
    }
    end(if wrong == 0 { Status::Passed } else { Status::Failed });
}

/// Executes commands for ever, on CPUs other than the first. Returns if there is no engine.
pub(crate) fn run_on_other(cpu: u32) {
    if !engine::exists() {
        return;
    }
    engine::come_online();
    ONLINE.fetch_add(1, Ordering::AcqRel);
    let command = &COMMANDS[cpu as usize];
    loop {
        let next = *command.lock();
        match next {
            None => Arch::wait_for_interrupt(),
            Some(next) => {
                match next {
                    Command::Run(run) => {
                        FOUND[cpu as usize].store(run.perform(cpu), Ordering::Relaxed);
                    }
                    Command::Empty => with_pinned(|pin| {
                        pin.leave_space();
                        processor().invalidate_all();
                    }),
                }
                *command.lock() = None;
            }
        }
    }
}

/// Runs a scenario with a fault, and prints the verdict. Returns `true` if the verdict is right.
fn is_right(
    memory: &mut BootMemory,
    scenario: &Scenario,
    fault: Fault,
    visibility: Visibility,
) -> bool {
    let name = scenario.name;
    if let Absent(why) = visibility {
        println!("trial way={name} fault={} verdict=absent why={why}", fault.name());
        return true;
    }
    let mut stale = 0;
    for _ in 0..TIMES {
        fault::select(fault);
        stale += usize::from((scenario.run)(memory) == Verdict::Stale);
        fault::remove();
        for cpu in 1..CPUS {
            begin(cpu, Command::Empty);
            finish(cpu);
        }
    }
    super::report(name, fault, visibility, stale)
}

fn begin(cpu: usize, command: Command) {
    *COMMANDS[cpu].lock() = Some(command);
    Arch::send(&mut [cpu as u32].into_iter(), Interrupt::Wake);
}

/// Waits until the CPU has executed its command. Returns the word that its guest has loaded.
fn finish(cpu: usize) -> u64 {
    wait_until(|| COMMANDS[cpu].lock().is_none());
    FOUND[cpu].load(Ordering::Relaxed)
}

impl Run {
    /// Runs the virtual CPU, and returns the word that it has loaded last.
    fn perform(self, cpu: u32) -> u64 {
        let Self { guest, vcpu, start, address, until_not } = self;
        let (vcpu, last) = (&guest.vcpus[vcpu], &guest.last[cpu as usize]);
        let to_count = COUNTS + 8 * self.vcpu - address;
        let mut user = User::new(CODE + start, Task::Read, (address, to_count), 0, 0);
        user.task = until_not as usize;
        masked(|| {
            engine::enter(&guest.space, vcpu, last);
            loop {
                match guest::run(&mut user, Root(guest.stage_1.address())) {
                    UserExit::Done => break,
                    UserExit::Interrupt => {}
                    // The page is not mapped while it is replaced.
                    UserExit::Fault { .. } => {
                        Arch::unmask_interrupts();
                        Arch::spin_hint();
                        Arch::mask_interrupts();
                    }
                }
            }
            with_pinned(PinnedCpu::enter_lazy);
        });
        user.value as u64
    }
}

impl Guest {
    /// Creates a guest whose page holds the old word.
    fn new(memory: &mut BootMemory) -> &'static Self {
        let stage_2 = memory.guest_root();
        let page = memory.frame();
        page::word_at(page, 0).store(OLD, Ordering::Relaxed);
        let (stage_1, code, counts) =
            (memory.frame(), memory.frame_with(engine::guest_code()), memory.frame());
        let table = memory.last_table(stage_1, PAGE);
        let executable = Protection::READ | Protection::EXECUTE;
        for (address, frame, protection) in
            [(CODE, code, executable), (PAGE, page, READ_WRITE), (COUNTS, counts, READ_WRITE)]
        {
            let last = memory.last_table(stage_1, address);
            let leaf = leaf(frame, protection);
            set_entry(
                last,
                address,
                0,
                if address == CODE { guest::privileged(leaf) } else { leaf },
            );
        }
        let end = memory.frame();
        for number in page.0..=end.0 {
            map(memory, stage_2, Frame(number), Frame(number));
        }
        processor().publish();
        let guest = Self {
            space: engine().space(Root(stage_2.address())),
            stage_1,
            stage_2,
            page,
            table,
            counts,
            vcpus: [Vcpu::new(0, 0), Vcpu::new(1, 0)],
            last: [const { LastVcpu::new() }; CPUS],
        };
        let mut guest = Some(guest);
        &memory.keep(1, |_| guest.take().expect("there is one"))[0]
    }

    /// Makes a CPU run a virtual CPU until it has loaded another word than this.
    fn begin(&'static self, cpu: usize, vcpu: usize, until_not: u64) {
        let run = Run { guest: self, vcpu, start: guest::LOOP, address: PAGE, until_not };
        begin(cpu, Command::Run(run));
    }

    /// Makes a virtual CPU load the word at an address once. It starts its code at this offset.
    fn load(&'static self, cpu: usize, vcpu: usize, (start, address): (usize, usize)) -> u64 {
        begin(cpu, Command::Run(Run { guest: self, vcpu, start, address, until_not: 0 }));
        finish(cpu)
    }

    fn load_page(&'static self, cpu: usize, vcpu: usize) -> u64 {
        self.load(cpu, vcpu, (guest::LOOP, PAGE))
    }

    /// Replaces the frame at an address of the guest's memory by the rules: unmaps it, flushes,
    /// gives it to a new owner, and maps the new one.
    fn replace(&self, memory: &mut BootMemory, frame: Frame, new: Frame, reuse: impl FnOnce()) {
        let address = frame.address() as usize;
        set_entry(memory.last_table(self.stage_2, address), address, 0, EMPTY);
        processor().publish();
        let extent = Extent::page(frame.address());
        with_pinned(|pin| pin.flush(&self.space, extent)).wait();
        reuse();
        map(memory, self.stage_2, frame, new);
        processor().publish();
    }

    /// Replaces the page by one with the new word.
    fn replace_page(&self, memory: &mut BootMemory) {
        let new = memory.frame();
        page::word_at(new, 0).store(NEW, Ordering::Relaxed);
        self.replace(memory, self.page, new, || {
            page::word_at(self.page, 0).store(REUSED, Ordering::Release);
        });
    }
}

/// Changes the guest's own entry of an address, as its kernel would.
fn set_own_entry(table: Frame, address: usize, frame: Frame) {
    set_entry(table, address, 0, leaf(frame, READ_WRITE));
    processor().publish();
}

/// A leaf of stage 1 that is marked already.
fn leaf(frame: Frame, protection: Protection) -> u64 {
    Tables::leaf(Leaf { frame, protection, marks: Marks::all() })
}

/// Maps a frame at this frame's address of the guest's memory.
fn map(memory: &mut BootMemory, stage_2: Frame, at: Frame, frame: Frame) {
    let address = at.address() as usize;
    set_entry(memory.last_table(stage_2, address), address, 0, guest::leaf(frame.address()));
}

/// The verdict of the words that virtual CPUs have loaded after the change.
fn verdict(words: &[u64]) -> Verdict {
    assert!(words.iter().all(|word| [OLD, NEW, REUSED].contains(word)), "no such page: {words:x?}");
    if words.iter().all(|word| *word == NEW) { Verdict::Fresh } else { Verdict::Stale }
}

/// Both virtual CPUs load the page while it is replaced.
fn runs_all_the_time(memory: &mut BootMemory) -> Verdict {
    let guest = Guest::new(memory);
    for vcpu in [0, 1] {
        guest.begin(vcpu + 1, vcpu, OLD);
    }
    let count = |vcpu| page::word_at(guest.counts, vcpu).load(Ordering::Acquire);
    wait_until(|| count(0) >= 2 && count(1) >= 2);
    fault::inject();
    guest.replace_page(memory);
    verdict(&[finish(1), finish(2)])
}

/// A virtual CPU loads the page on one CPU, then on another one. The page is replaced while neither
/// runs the guest, and the virtual CPU goes back the same way.
fn comes_back(memory: &mut BootMemory) -> Verdict {
    let guest = Guest::new(memory);
    assert_eq!([1, 2].map(|cpu| guest.load_page(cpu, 0)), [OLD; 2]);
    fault::inject();
    guest.replace_page(memory);
    verdict(&[2, 1].map(|cpu| guest.load_page(cpu, 0)))
}

/// The frame that holds a table of the guest's is replaced by a copy, and the guest adds an entry
/// for another page, which the MMU walks to by stage 2. The new owner's entry maps a page of its
/// own.
fn walks_a_replaced_table(memory: &mut BootMemory) -> Verdict {
    let guest = Guest::new(memory);
    assert_eq!(guest.load_page(1, 0), OLD);
    fault::inject();
    let (copy, others, own) = (memory.frame(), memory.frame(), memory.frame());
    page::copy(guest.table, copy);
    for (frame, word) in [(others, REUSED), (own, NEW)] {
        page::word_at(frame, 0).store(word, Ordering::Relaxed);
        map(memory, guest.stage_2, frame, frame);
    }
    guest.replace(memory, guest.table, copy, || set_own_entry(guest.table, SIBLING, others));
    set_own_entry(copy, SIBLING, own);
    verdict(&[guest.load(1, 0, (guest::LOOP, SIBLING))])
}

/// A virtual CPU loads the page, moves to another CPU, changes and invalidates its own entry there,
/// without an exit, and moves back.
fn is_given_back_a_vcpu(memory: &mut BootMemory) -> Verdict {
    let guest = Guest::new(memory);
    assert_eq!(guest.load_page(1, 0), OLD);
    fault::inject();
    let new = memory.frame();
    page::word_at(new, 0).store(NEW, Ordering::Relaxed);
    map(memory, guest.stage_2, new, new);
    set_own_entry(guest.table, PAGE, new);
    verdict(&[guest.load(2, 0, (0, PAGE)), guest.load_page(1, 0)])
}
