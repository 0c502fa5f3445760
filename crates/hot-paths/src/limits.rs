//! The budgets of the paths, at each width of the CPU sets.

/// Widths of CPU sets that are counted, in words: up to 64, 512 and 4096 CPUs.
pub const WIDTHS: [usize; 3] = [1, 8, 64];

/// The measured and the intended cost of a path, at each of [`WIDTHS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The last measured cost, on an x86-64 host, with [`Plain`](crate::Plain) hardware, code that
    /// does not unwind, and rustc 1.95.
    pub measured: [u64; 3],
    /// The intended cost; `None` if there is no target.
    pub target: Option<[u64; 3]>,
}

impl Limits {
    pub(crate) const fn new(measured: [u64; 3], target: Option<[u64; 3]>) -> Self {
        Self { measured, target }
    }
}

/// The cost above which a benchmark fails: 2 % above the measured cost.
#[must_use]
pub const fn budget(measured: u64) -> u64 {
    measured + measured / 50
}

/// Bytes of stack of one flush of one gathered page, from the notification of another CPU to the
/// end of the wait.
pub const STACK: Limits = Limits::new([192, 312, 744], Some([300, 400, 800]));
