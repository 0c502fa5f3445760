//! What the kernel asks of an architecture.

#![expect(unsafe_code, reason = "stacks and roots are promises that no type can prove")]

use core::ops::Range;

use shootdown::Root;
use shootdown_hw::Processor;
use shootdown_vm::{Access, Format};

/// What the first CPU is given.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    /// Physical memory that nobody uses: neither the kernel, nor its page tables, nor `load`.
    pub(crate) memory: Range<u64>,
    /// What `shootdown boot` has put into memory: what to do, and with what.
    pub(crate) load: &'static [u8],
}

/// Why a CPU is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Another CPU has rung this one's bell.
    Flush,
    /// Another CPU has work for this one's scheduler.
    Wake,
    /// The time is up that was asked for.
    Timer,
}

/// Why a user thread has come back to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserExit {
    /// It is done with what it was asked to do.
    Done,
    /// An access was refused.
    Fault {
        /// To where.
        address: u64,
        /// Which.
        access: Access,
    },
    /// An interrupt came, and the [handler](super::set_interrupt_handler) has run.
    Interrupt,
}

/// What a user thread does: the code that it runs is [`Architecture::user_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Task {
    /// Reads the word at each of `count` addresses, the last of which stays in `value`.
    Read = 0,
    /// Writes `value` there.
    Write = 1,
    /// Reads the word at one address, up to `count` times, for as long as it is `value`; the last
    /// stays in `value`, and in `count` how many reads are left.
    ReadWhile = 2,
    /// Writes `value` to one address, `count` times.
    WriteOften = 3,
    /// Counts down from `count`, and touches no memory.
    Spin = 4,
}

/// The registers of a user thread between two stays in user mode.
///
/// An implementation keeps what else it needs (flags, the program counter) in `machine`. All
/// progress is in registers: who comes back after a fault goes on where it was.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct User {
    /// What is to be done, by its number.
    pub(crate) task: usize,
    /// The next address.
    pub(crate) address: usize,
    /// How often it is still to be done.
    pub(crate) count: usize,
    /// From one address to the next.
    pub(crate) stride: usize,
    /// What is written, or was read.
    pub(crate) value: usize,
    /// The program counter: at the beginning, where [`Architecture::user_code`] is mapped.
    pub(crate) pc: usize,
    /// The implementation's own.
    pub(crate) machine: [usize; 4],
}

impl User {
    /// A thread that has not run yet, of code at `pc`: does a task `count` times, at addresses from
    /// `address` on that are `stride` bytes apart, with `value`.
    pub(crate) const fn new(
        pc: usize,
        task: Task,
        addresses: (usize, usize),
        count: usize,
        value: usize,
    ) -> Self {
        let (address, stride) = addresses;
        Self { task: task as usize, address, count, stride, value, pc, machine: [0; 4] }
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// All is well.
    Passed,
    /// Something was wrong, and has been said.
    Failed,
}

// In the architecture's assembly.
unsafe extern "C" {
    fn switch_stack(from: *mut usize, to: usize);
    /// Never called, but returned to by `switch_stack`.
    fn thread_start();
    static user_code_start: u8;
    static user_code_end: u8;
}

/// What the kernel asks of an architecture.
///
/// # Safety
///
/// Each method does what it says: threads, locks and page tables rest on it.
pub(crate) unsafe trait Architecture {
    /// What the engine is told of the processor.
    type Processor: Processor;
    /// The format of page tables that the MMU walks.
    type Format: Format;

    /// Its name, as `shootdown boot --arch` has it.
    const NAME: &'static str;

    /// Whether a CPU that was [switched off](Self::switch_off) can be started again.
    const STARTS_AGAIN: bool;

    /// Where the kernel sees a physical address. All of physical memory is mapped, in pages of
    /// 4 KiB where a larger one would make emulators flush too much.
    fn phys_to_virt<T>(address: u64) -> *mut T;

    /// The processor, with its features found out.
    fn processor() -> Self::Processor;

    /// The page table that maps the kernel and nothing else.
    fn kernel_root() -> Root;

    /// Has a new root, which is all zeros, map the kernel, too: before it is first loaded.
    fn prepare_root(root: Root);

    /// Sets up the calling CPU, which is to be number `cpu`: vectors, its interrupts, its timer.
    /// Interrupts stay masked.
    fn set_up_cpu(cpu: u32);

    /// Starts another CPU, which is to come to [`super::Entry`] with its number, on
    /// the stack that ends at `stack_end`. Returns when it has been told.
    fn start_cpu(cpu: u32, stack_end: usize);

    /// Switches the calling CPU off: it does nothing more until it is [started](Self::start_cpu)
    /// again, and keeps nothing. Called with interrupts masked.
    fn switch_off() -> !;

    /// The number of the CPU that runs this.
    fn cpu() -> u32;

    /// Whether interrupts are masked here.
    fn interrupts_masked() -> bool;

    /// Masks interrupts on this CPU.
    fn mask_interrupts();

    /// Lets interrupts in.
    fn unmask_interrupts();

    /// Waits until an interrupt has been handled. Called, and returns, with interrupts masked: one
    /// that came since they were masked ends the wait at once.
    fn wait_for_interrupt();

    /// Interrupts other CPUs, which find memory as it is now.
    fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt);

    /// A turn of a loop that waits for another CPU. An emulator that runs one CPU at a time gives
    /// the turn to another, if it is told by the right instruction.
    #[inline]
    fn spin_hint() {
        core::hint::spin_loop();
    }

    /// The time since some moment, in nanoseconds: the same on all CPUs.
    fn now_ns() -> u64;

    /// How many instructions were run since some moment, by an emulator that has time pass by their
    /// number (`-icount shift=0`: one in a nanosecond); rounded down to a tick of the clock.
    fn instructions() -> u64;

    /// A [`Interrupt::Timer`] is to come to this CPU once, so many nanoseconds from now; instead of
    /// any that was asked for before.
    fn set_timer_ns(delay_ns: u64);

    /// The registers that `switch_stack` takes from a stack, from the lowest address on.
    type Saved;

    /// The registers of a thread that begins at `start`, which calls `entry` with `argument`.
    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved;

    /// Prepares a stack for a thread that has not run yet, and returns what
    /// [`Architecture::switch_stack`] goes on with. The thread calls `entry` with `argument`,
    /// interrupts masked.
    ///
    /// # Safety
    ///
    /// The stack that ends at `stack_end` must have 16 KiB at least, and be nobody else's.
    unsafe fn new_stack(
        stack_end: usize,
        entry: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> usize {
        let saved = Self::saved(thread_start as *const () as usize, entry as usize, argument);
        let top = (stack_end & !0xf) - size_of::<Self::Saved>();
        // SAFETY: the stack is our caller's.
        unsafe { (top as *mut Self::Saved).write(saved) };
        top
    }

    /// Goes on with another thread where it called this, and returns when somebody goes on with
    /// this one. Called with interrupts masked.
    ///
    /// # Safety
    ///
    /// `to` must have come from here or from [`Architecture::new_stack`], and be gone on with once.
    /// `from` is written before anything of `to` runs.
    unsafe fn switch_stack(from: *mut usize, to: usize) {
        // SAFETY: as our caller promises.
        unsafe { switch_stack(from, to) };
    }

    /// Runs in user mode, with interrupts let in, until something happens. Called, and returns,
    /// with interrupts masked. The calling thread's own stack is used for what happens.
    fn run_user(user: &mut User) -> UserExit;

    /// The code of user threads, less than a page of it, which may lie anywhere: does a [`Task`],
    /// and makes a system call.
    fn user_code() -> &'static [u8] {
        let (start, end) = (&raw const user_code_start, &raw const user_code_end);
        // SAFETY: between the two is code, and nothing writes to it.
        unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }

    /// Has this CPU forget that an access was refused: before it is tried again. Nothing where
    /// nothing of the kind is remembered.
    fn forget_refused(address: u64) {
        let _ = address;
    }

    /// The entry of a page that is cached once for all spaces, as those of the kernel are, and else
    /// as this one. As it is where that is a matter of more entries than one (`LoongArch`).
    fn global(entry: u64) -> u64 {
        entry
    }

    /// Writes to the console, and waits for as long as it has no room.
    fn write(byte: u8);

    /// Ends the run, when all has been written.
    fn exit(status: Status) -> !;
}

/// Implements functions by the functions of the same names of modules.
macro_rules! implement_by {
    ($($module:ident {
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    })*) => {
        $($(
            #[inline]
            fn $name($($argument: $type),*) $(-> $result)? {
                $module::$name($($argument),*)
            }
        )*)*
    };
}
pub(super) use implement_by;
