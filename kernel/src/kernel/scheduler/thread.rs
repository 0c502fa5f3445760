//! Threads and their stacks.

#![expect(unsafe_code, reason = "switches to spaces, and reads a word of a stack that is in use")]

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::mem::MaybeUninit;

/// The number of a thread. Threads are numbered from 0 in the order of their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadId(pub(crate) u32);

/// The CPUs on which a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// Any CPU.
    Any,
    /// This CPU alone.
    Cpu(u32),
}

/// The event for which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// The thread is ready, and waits for a CPU.
    Turn,
    /// A time, in nanoseconds.
    Time(u64),
    /// A sleeping lock at this address: of the areas of a space, or of the program.
    Lock(usize),
    /// A wake by another thread.
    Wake,
    /// The end of the program of this number.
    Join(u32),
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Running,
    Blocked,
    Done,
}

/// The space of a thread.
pub(crate) trait ThreadSpace: Send + Sync {
    /// Makes the space current on this CPU: loads the page tables that the CPU should use for it.
    /// Takes no lock but spin locks whose holders do not use the scheduler, because the scheduler's
    /// is held.
    ///
    /// # Safety
    ///
    /// The space must not be retired, and must be retired before its page tables are freed.
    unsafe fn switch_here(&self);
}

/// The function that a thread runs.
pub(super) type Body = Box<dyn FnOnce() + Send>;

/// A thread. The scheduler's lock protects it.
pub(super) struct Thread {
    /// The space of the thread; `None` for a kernel thread.
    pub(super) space: Option<Arc<dyn ThreadSpace>>,
    pub(super) affinity: Affinity,
    /// The number of its program, for error messages.
    pub(super) program: u32,
    /// The CPU on which it runs or ran last.
    pub(super) cpu: u32,
    pub(super) state: State,
    pub(super) wait_reason: WaitReason,
    /// Set if the thread was woken since it last blocked.
    pub(super) is_woken: bool,
    /// The function to run; `None` once the thread has begun.
    pub(super) body: Option<Body>,
    /// The stack pointer while the thread does not run.
    pub(super) stack_pointer: usize,
    /// The stack; `None` once the thread has ended.
    pub(super) stack: Option<Stack>,
}

impl Thread {
    pub(super) fn new(
        space: Option<Arc<dyn ThreadSpace>>,
        affinity: Affinity,
        program: u32,
        body: Body,
    ) -> Self {
        Self {
            space,
            affinity,
            program,
            cpu: 0,
            state: State::Blocked,
            wait_reason: WaitReason::Turn,
            is_woken: false,
            body: Some(body),
            stack_pointer: 0,
            stack: Some(Stack::new()),
        }
    }
}

/// A stack, with a mark in its last word to detect overflows.
pub(crate) struct Stack(Box<[MaybeUninit<u128>]>);

/// Size of a stack. Handlers of interrupts and the memory manager run on it.
const STACK_BYTES: usize = 64 << 10;
const MARK: u128 = 0x5ca1_ab1e_5ca1_ab1e_5ca1_ab1e_5ca1_ab1e;

impl Stack {
    pub(crate) fn new() -> Self {
        let mut words = Box::new_uninit_slice(STACK_BYTES / size_of::<u128>());
        words[0].write(MARK);
        Self(words)
    }

    /// The address at which the stack begins, its highest, because it grows down.
    pub(super) fn end(&self) -> usize {
        self.0.as_ptr_range().end.expose_provenance()
    }

    /// Returns `true` if the stack has not overflowed.
    pub(super) fn is_whole(&self) -> bool {
        let last = self.0.as_ptr().cast::<u128>();
        // SAFETY: `new` has written the word. The read is volatile because the thread may have
        // written it since through a pointer that the compiler does not know.
        unsafe { last.read_volatile() == MARK }
    }

    /// Leaks the stack, for a CPU that is about to start. Returns its end.
    pub(crate) fn leak(self) -> usize {
        let end = self.end();
        Box::leak(self.0);
        end
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn => f.write_str("its turn"),
            Self::Time(until_ns) => write!(f, "the time {until_ns} ns"),
            Self::Lock(lock) => write!(f, "the lock at {lock:#x}"),
            Self::Wake => f.write_str("a wake"),
            Self::Join(program) => write!(f, "the end of program {program}"),
        }
    }
}
