//! What a thread is made of.

#![expect(unsafe_code, reason = "reads a word of a stack that is in use")]

use alloc::boxed::Box;
use core::fmt;
use core::mem::MaybeUninit;

use crate::kernel::machine::SharedSpace;

/// A thread's number, from 0 on, in the order of their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ThreadId(pub(crate) u32);

/// Where a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// On any CPU.
    Any,
    /// On this one alone.
    Cpu(u32),
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Its turn.
    Turn,
    /// A moment.
    Time(u64),
    /// A lock whose waiters sleep, by its address: of the areas of a space, or the program's own.
    Lock(usize),
    /// A wake that it has not waited for yet.
    Wake,
    /// The end of a program.
    Join(u32),
}

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Running,
    Blocked,
    Done,
}

/// The function that a thread runs.
pub(super) type Body = Box<dyn FnOnce() + Send>;

/// A thread, under the scheduler's lock.
pub(super) struct Thread {
    /// Of whose memory it is a thread; none if it is one of the kernel alone.
    pub(super) space: Option<SharedSpace>,
    pub(super) affinity: Affinity,
    /// What it runs: for people.
    pub(super) program: u32,
    /// Where it runs, or ran last.
    pub(super) cpu: u32,
    pub(super) state: State,
    pub(super) waits: Waits,
    /// It was woken since it last blocked.
    pub(super) is_woken: bool,
    /// Until it begins.
    pub(super) body: Option<Body>,
    /// While it does not run.
    pub(super) stack_pointer: usize,
    /// Until it has ended.
    pub(super) stack: Option<Stack>,
}

impl Thread {
    pub(super) fn new(
        space: Option<SharedSpace>,
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
            waits: Waits::Turn,
            is_woken: false,
            body: Some(body),
            stack_pointer: 0,
            stack: Some(Stack::new()),
        }
    }
}

/// A stack, with a word at its end that nobody writes.
pub(crate) struct Stack(Box<[MaybeUninit<u128>]>);

/// Interrupts, and all that the memory manager does, are on it.
const STACK_BYTES: usize = 64 << 10;
const MARK: u128 = 0x5ca1_ab1e_5ca1_ab1e_5ca1_ab1e_5ca1_ab1e;

impl Stack {
    pub(crate) fn new() -> Self {
        let mut words = Box::new_uninit_slice(STACK_BYTES / size_of::<u128>());
        words[0].write(MARK);
        Self(words)
    }

    /// Where it begins, for it grows down.
    pub(super) fn end(&self) -> usize {
        self.0.as_ptr_range().end.expose_provenance()
    }

    /// Whether it was large enough so far.
    pub(super) fn is_whole(&self) -> bool {
        let last = self.0.as_ptr().cast::<u128>();
        // SAFETY: it was written when the stack was made, and may have been since, by whoever has
        // used the stack: to the compiler, anybody.
        unsafe { last.read_volatile() == MARK }
    }

    /// For a CPU that is about to start, for ever.
    pub(crate) fn leak(self) -> usize {
        let end = self.end();
        Box::leak(self.0);
        end
    }
}

impl fmt::Display for Waits {
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
