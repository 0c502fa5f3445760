//! The interface between the kernel and an architecture.

#![expect(unsafe_code, reason = "stacks and roots are promises that no type can prove")]

use core::mem::offset_of;
use core::ops::Range;

use shootdown::Root;
use shootdown_hw::Processor;
use shootdown_vm::{Access, Format};

/// What an architecture passes to the first CPU.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    /// Unused physical memory. The kernel, its page tables and `load` are outside of it.
    pub(crate) memory: Range<u64>,
    /// The load that `shootdown boot` has put into memory; empty if there is none.
    pub(crate) load: &'static [u8],
}

/// The reason for an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Another CPU has rung this CPU's bell.
    Flush,
    /// Another CPU has work for this CPU's scheduler.
    Wake,
    /// This CPU's timer has expired.
    Timer,
}

/// The reason for which a user thread has returned to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserExit {
    /// The thread has finished its task.
    Done,
    /// An access was refused.
    Fault {
        /// The address of the access.
        address: u64,
        /// The kind of access.
        access: Access,
    },
    /// An interrupt came, and its [handler](super::set_interrupt_handler) has run.
    Interrupt,
}

/// The task of a user thread, which [`Architecture::user_code`] executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Task {
    /// Reads the word at each of `count` addresses. The last word is left in `value`.
    Read = 0,
    /// Writes `value` to each of `count` addresses, which are one address if the stride is 0.
    Write = 1,
    /// Reads the word at one address until it differs from `value`, at most `count` times. The last
    /// word is left in `value`, and the number of reads that are left in `count`.
    ReadWhile = 2,
    /// Counts down from `count` without accessing memory.
    Spin = 3,
}

/// The registers of a user thread while it is in the kernel.
///
/// An implementation saves other registers (flags, a scratch register) in `machine`. All progress
/// of a task is in registers, so a thread that returns after a fault continues where it was.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct User {
    /// The number of the [`Task`].
    pub(crate) task: usize,
    /// The next address.
    pub(crate) address: usize,
    /// Number of repetitions that are left.
    pub(crate) count: usize,
    /// Distance from one address to the next, in bytes.
    pub(crate) stride: usize,
    /// The word to write, or the word that was read.
    pub(crate) value: usize,
    /// The program counter. It starts where [`Architecture::user_code`] is mapped.
    pub(crate) pc: usize,
    /// Registers that only the implementation uses; 0 at the start.
    pub(crate) machine: [usize; 4],
}

impl User {
    /// A thread that has not run yet. `pc` is the address of its code, and `addresses` has the
    /// first address and the stride.
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

// Where the assembly of AArch64, RISC-V and LoongArch64 finds the fields.
const _: () = assert!(offset_of!(User, pc) == 40 && offset_of!(User, machine) == 48);

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The run found no error.
    Passed,
    /// The run found an error, and has printed it.
    Failed,
}

// Defined in the architecture's assembly.
unsafe extern "C" {
    fn switch_stack(from: *mut usize, to: usize);
    /// The return address of a new thread's first `switch_stack`. It is never called.
    fn thread_start();
    static user_code_start: u8;
    static user_code_end: u8;
}

/// The operations of an architecture.
///
/// # Safety
///
/// Each method must do what its documentation promises: threads, locks and page tables rely on it.
pub(crate) unsafe trait Architecture {
    /// The processor, for the engine.
    type Processor: Processor;
    /// The page-table format that the MMU walks.
    type Format: Format;

    /// The name, as in `shootdown boot --arch`.
    const NAME: &'static str;

    /// `true` if a CPU that was [switched off](Self::switch_off) can be started again.
    const CAN_RESTART_CPUS: bool;

    /// The address at which the kernel maps a physical address. All of physical memory is mapped,
    /// in pages of 4 KiB where larger pages would make emulators flush too much.
    fn phys_to_virt<T>(address: u64) -> *mut T;

    /// The processor with the features that it has.
    fn processor() -> Self::Processor;

    /// As [`processor`](Self::processor), with broadcasts if the machine has some that it does not
    /// use by default.
    fn broadcasting_processor() -> Self::Processor {
        Self::processor()
    }

    /// The page table that maps the kernel and nothing else.
    fn kernel_root() -> Root;

    /// Makes a new root, which is all zeros, map the kernel. Call this before the root is loaded.
    fn prepare_root(root: Root);

    /// Sets up the calling CPU, whose number is `cpu`: vectors, interrupts and timer. Interrupts
    /// stay masked.
    fn set_up_cpu(cpu: u32);

    /// Starts another CPU, which enters the kernel by [`super::upcalls::main_on_other_cpu`] on the
    /// stack that ends at `stack_end`. Returns when the start has been requested.
    fn start_cpu(cpu: u32, stack_end: usize);

    /// Switches the calling CPU off until it is [started](Self::start_cpu) again. The CPU loses its
    /// state. Call this with interrupts masked.
    fn switch_off() -> !;

    /// The number of the CPU that runs this.
    fn cpu() -> u32;

    /// Returns `true` if interrupts are masked on this CPU.
    fn interrupts_masked() -> bool;

    /// Masks interrupts on this CPU.
    fn mask_interrupts();

    /// Unmasks interrupts on this CPU.
    fn unmask_interrupts();

    /// Waits until an interrupt has been handled. Call this with interrupts masked; they are masked
    /// when it returns. An interrupt that came after they were masked ends the wait immediately.
    fn wait_for_interrupt();

    /// Interrupts other CPUs. Their handlers observe all earlier stores of this CPU.
    fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt);

    /// Pauses in a loop that waits for another CPU. On an emulator that runs one CPU at a time, the
    /// right instruction lets another CPU run.
    #[inline]
    fn spin_hint() {
        core::hint::spin_loop();
    }

    /// The time in nanoseconds since some moment, the same on all CPUs.
    fn now_ns() -> u64;

    /// Waits until `condition` returns `true`, for at most `timeout_ns`. Returns `false` if the
    /// time is over.
    fn wait_until(timeout_ns: u64, condition: impl Fn() -> bool) -> bool {
        let start_ns = Self::now_ns();
        while !condition() {
            if Self::now_ns() - start_ns >= timeout_ns {
                return false;
            }
            Self::spin_hint();
        }
        true
    }

    /// Requests one [`Interrupt::Timer`] on this CPU after `delay_ns`. Replaces an earlier request.
    fn set_timer_ns(delay_ns: u64);

    /// The registers that `switch_stack` pops from a stack, from the lowest address on.
    type Saved;

    /// The registers of a new thread that begins at `start`, which calls `entry` with `argument`.
    fn saved(start: usize, entry: usize, argument: usize) -> Self::Saved;

    /// Prepares the stack of a new thread, and returns the stack pointer to pass to
    /// [`Architecture::switch_stack`]. The thread calls `entry` with `argument`, interrupts masked.
    ///
    /// # Safety
    ///
    /// The stack that ends at `stack_end` must have at least 16 KiB, and nothing else may use it.
    unsafe fn new_stack(
        stack_end: usize,
        entry: extern "C" fn(usize) -> !,
        argument: usize,
    ) -> usize {
        let saved = Self::saved(thread_start as *const () as usize, entry as usize, argument);
        let top = (stack_end & !0xf) - size_of::<Self::Saved>();
        // SAFETY: the caller promises that the stack is unused.
        unsafe { (top as *mut Self::Saved).write(saved) };
        top
    }

    /// Saves the calling thread's registers on its stack and its stack pointer to `from`, and
    /// resumes the thread whose stack pointer is `to`. Returns when another call resumes the
    /// calling thread. Call this with interrupts masked.
    ///
    /// # Safety
    ///
    /// `to` must have been stored by this function or returned by [`Architecture::new_stack`], and
    /// may be resumed once. `from` must be valid for a write, which is done before `to` runs.
    unsafe fn switch_stack(from: *mut usize, to: usize) {
        // SAFETY: the caller's promise.
        unsafe { switch_stack(from, to) };
    }

    /// Runs a thread in user mode, with interrupts enabled, until an event. Call this with
    /// interrupts masked; they are masked when it returns. The handler of the event runs on the
    /// calling thread's stack.
    fn run_user(user: &mut User) -> UserExit;

    /// The code of user threads, at most a page. It is position-independent, executes a [`Task`],
    /// and then makes a system call.
    fn user_code() -> &'static [u8] {
        let (start, end) = (&raw const user_code_start, &raw const user_code_end);
        // SAFETY: the code lies between the two symbols, and is never written.
        unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }

    /// Returns the page-table entry with its page global: cached once for all spaces, as kernel
    /// pages are. Returns `entry` where this depends on several entries (`LoongArch`).
    fn global(entry: u64) -> u64 {
        entry
    }

    /// Writes a byte to the console. Waits until there is room.
    fn write(byte: u8);

    /// Ends the run after all console output is sent.
    fn exit(status: Status) -> !;
}

/// Implements functions of [`Architecture`] by calling functions of the same names in modules.
macro_rules! implement_by {
    ($($module:ident: $($name:ident),*;)*) => { $($(implement_by! { @$name $module })*)* };
    (@kernel_root $m:ident) => { implement_by! { $m fn kernel_root() -> Root } };
    (@prepare_root $m:ident) => { implement_by! { $m fn prepare_root(root: Root) } };
    (@set_up_cpu $m:ident) => { implement_by! { $m fn set_up_cpu(cpu: u32) } };
    (@start_cpu $m:ident) => { implement_by! { $m fn start_cpu(cpu: u32, stack_end: usize) } };
    (@switch_off $m:ident) => { implement_by! { $m fn switch_off() -> ! } };
    (@cpu $m:ident) => { implement_by! { $m fn cpu() -> u32 } };
    (@interrupts_masked $m:ident) => { implement_by! { $m fn interrupts_masked() -> bool } };
    (@mask_interrupts $m:ident) => { implement_by! { $m fn mask_interrupts() } };
    (@unmask_interrupts $m:ident) => { implement_by! { $m fn unmask_interrupts() } };
    (@wait_for_interrupt $m:ident) => { implement_by! { $m fn wait_for_interrupt() } };
    (@send $m:ident) => {
        implement_by! { $m fn send(cpus: &mut dyn Iterator<Item = u32>, interrupt: Interrupt) }
    };
    (@now_ns $m:ident) => { implement_by! { $m fn now_ns() -> u64 } };
    (@set_timer_ns $m:ident) => { implement_by! { $m fn set_timer_ns(delay_ns: u64) } };
    (@run_user $m:ident) => { implement_by! { $m fn run_user(user: &mut User) -> UserExit } };
    (@write $m:ident) => { implement_by! { $m fn write(byte: u8) } };
    (@exit $m:ident) => { implement_by! { $m fn exit(status: Status) -> ! } };
    ($module:ident fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        #[inline]
        fn $name($($argument: $type),*) $(-> $result)? {
            $module::$name($($argument),*)
        }
    };
}
pub(super) use implement_by;
