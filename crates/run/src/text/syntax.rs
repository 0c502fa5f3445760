//! A parsed text: threads as flat code, with names as numbers.

use shootdown_program::OnFault;
use shootdown_program::operation::{Access, LockId, Operation, Permission, ProgramId};

use super::error::Position;
use super::expression::Expression;
use super::lexer::Unit;
use crate::settings::Supply;

/// A parsed text.
#[derive(Clone, Debug)]
pub(super) struct Code {
    /// Thread 0 is the one that starts with the workload.
    pub(super) threads: Vec<Thread>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) memory: Option<MemorySize>,
    /// The number of nodes, and the place of its declaration.
    pub(super) nodes: Option<(Position, Expression)>,
    pub(super) on_fault: OnFault,
    /// The pipes and sockets, by the numbers of their names.
    pub(super) pipes: Vec<(usize, PipeSpec)>,
    pub(super) names: Names,
}

/// The names of a text. A name's number is its index.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// The variables, with the quantity of their values.
    pub(super) variables: Vec<(String, Unit)>,
    pub(super) areas: Vec<String>,
    pub(super) files: Vec<String>,
    pub(super) locks: Vec<String>,
    pub(super) barriers: Vec<String>,
    pub(super) pipes: Vec<String>,
    /// The intervals. The empty name is the interval without a name.
    pub(super) intervals: Vec<String>,
}

/// Variables that every thread has. Their numbers are their indices.
pub(super) const BUILT_IN: [&str; 5] = ["cpus", "sockets", "seed", "index", "count"];
pub(super) const CPUS: usize = 0;
pub(super) const SOCKETS: usize = 1;
pub(super) const SEED: usize = 2;
pub(super) const INDEX: usize = 3;
pub(super) const COUNT: usize = 4;

/// A parameter with its default.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) at: Position,
    pub(super) variable: usize,
    pub(super) default: Expression,
}

/// The buffer of a pipe or a socket.
#[derive(Clone, Debug)]
pub(super) struct PipeSpec {
    /// Number of messages that the buffer holds.
    pub(super) messages: Expression,
    pub(super) kind: PipeKind,
}

/// The end of a pipe that a thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Send,
    Receive,
}

/// The time at which a sender that waits for room is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PipeKind {
    /// When there is room.
    Pipe,
    /// When at most a quarter of the buffer is in use (Linux: `unix_writable`).
    Socket,
}

/// The size of memory.
#[derive(Clone, Debug)]
pub(super) struct MemorySize {
    pub(super) pages: Expression,
    pub(super) supply: Supply,
}

/// The code of a thread.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) steps: Vec<Step>,
}

/// A step of a thread's code.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) at: Position,
    pub(super) kind: Kind,
}

/// The kinds of steps. Targets of jumps are indices of steps.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Map(Map),
    Change(Change, Part),
    /// Moves an area, and gives it another size if there is one.
    Remap(Indexed, Option<Expression>),
    /// Removes the pages of a file behind the first ones.
    Truncate(Indexed, Expression),
    Touch(Access, Part),
    /// Starts instances of a thread; one without a number.
    Start {
        start: fn(ProgramId) -> Operation,
        thread: usize,
        count: Option<Expression>,
    },
    /// Waits for the instances of one thread that this thread has started, or for all.
    Join(Option<usize>),
    Wake(usize, Option<Expression>),
    /// An operation without operands.
    Plain(Operation),
    Pin(Expression),
    /// An operation that takes a time.
    Timed(fn(u64) -> Operation, Expression),
    /// An operation on a lock.
    OnLock(fn(LockId) -> Operation, Indexed),
    /// Waits until the given number of threads have arrived.
    Barrier(Indexed, Expression),
    /// Stops a virtual CPU for a time.
    Stop(Expression, Expression),
    UsePipe(Indexed, End),
    Count(Option<Expression>),
    Let(usize, Expression),
    /// Begins a loop over numbers.
    Loop(Box<Loop>),
    /// Begins a loop that ends after a time.
    LoopFor {
        duration: Expression,
        exit: usize,
    },
    /// Ends the body of the innermost loop, which begins at a step.
    Next {
        body: usize,
    },
    /// Jumps if the condition is 0.
    Unless(Expression, usize),
    Jump(usize),
    /// Jumps to one of several targets at random, by weight.
    Choose(Vec<(Expression, usize)>),
    IntervalBegins(usize),
    IntervalEnds(usize),
}

/// A loop over numbers.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub(super) variable: Option<usize>,
    pub(super) from: Expression,
    pub(super) to: Expression,
    pub(super) step: Option<Expression>,
    pub(super) exit: usize,
}

/// A new mapping.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) area: Indexed,
    pub(super) pages: Expression,
    pub(super) permission: Permission,
    /// The file, and whether the mapping is shared.
    pub(super) file: Option<(Indexed, Sharing)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Private,
    Shared,
}

/// A change of pages.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Unmap,
    Protect(Permission),
    Discard,
    /// Discards every n-th page, each as a range of its own, in one call.
    DiscardEach(Expression),
    /// Marks pages that may be freed when memory is short.
    Offer,
    /// Replaces small pages by large ones.
    Collapse,
    /// Makes first writes map large pages.
    Huge,
    /// Writes pages of a file out, and reclaims them.
    PageOut,
    /// Writes pages of a file out, and protects them.
    Sync,
    /// Makes the next access to each page a fault.
    Hint,
    /// Moves pages to a node.
    Move(Expression),
    /// Writes to a page that forbids writes.
    Segfault,
}

/// Pages of an area: all, one, or a range.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) area: Indexed,
    pub(super) pages: Option<(Expression, Option<Expression>)>,
}

/// A name with an index, which is 0 if the text has none.
#[derive(Clone, Debug)]
pub(super) struct Indexed {
    pub(super) name: usize,
    pub(super) index: Option<Expression>,
}
