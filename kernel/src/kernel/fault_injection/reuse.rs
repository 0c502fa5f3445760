//! Scenarios of a clean page that is unmapped without a flush, and flushed when its frame is
//! reused.

use shootdown::{CleanBatch, CleanExtent, Space, StaleWrites, Unflushed};
use shootdown_vm::Frame;

use crate::kernel::boot_memory::BootMemory;
use crate::kernel::fault_injection::engine::{Machine, engine, with_pinned};
use crate::kernel::fault_injection::observed::{shootdown_freed, shootdown_settled};
use crate::kernel::fault_injection::scenarios::{PAGE, Scene, Verdict, changed_page, new_or_old};
use crate::kernel::fault_injection::user::{self, Command, begin, execute};

/// One frame, which is out of reach until its flush is done.
#[derive(Debug, Default)]
struct One(Option<Frame>);

impl Extend<Frame> for One {
    fn extend<I: IntoIterator<Item = Frame>>(&mut self, frames: I) {
        frames.into_iter().for_each(|frame| self.0 = Some(frame));
    }
}

type Deferred = Unflushed<&'static Space<Machine>, One, 1>;

impl Scene {
    /// Unmaps the page, which is read-only, and interrupts no CPU.
    fn defer(&self, memory: &mut BootMemory) -> Deferred {
        let mut batch = CleanBatch::new();
        let entry = batch.space(engine().machine(), &self.space).expect("it is empty");
        self.unmap(memory);
        let clean = CleanExtent::new(changed_page(), StaleWrites::Impossible);
        entry.unmapped(clean.expect("no CPU can write"));
        batch.defer_free(self.old);
        with_pinned(|pin| batch.defer(pin))
    }

    /// Flushes what is due, gives the frame to a new owner, and maps the new page.
    fn reuse(&self, memory: &mut BootMemory, mut unflushed: Deferred) {
        let One(frame) = with_pinned(|pin| unflushed.reuse(pin)).wait();
        shootdown_settled();
        shootdown_freed(frame.expect("it was deferred").address());
        self.map_read_only(memory, self.new);
    }
}

/// The other CPU reads the page all the time. It is not interrupted when the page is unmapped, and
/// must find the new page when the frame is reused.
pub(super) fn reads_until_reuse(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_read_only_use(memory);
    begin(Command::KeepReading(PAGE));
    let before = user::flush_interrupts();
    let unflushed = scene.defer(memory);
    assert_eq!(user::flush_interrupts(), before, "a deferred flush has interrupted a CPU");
    scene.reuse(memory, unflushed);
    new_or_old(user::end())
}

/// The other CPU has been idle and come back by the time that the frame is reused.
pub(super) fn catches_up_before_reuse(memory: &mut BootMemory) -> Verdict {
    let scene = Scene::in_read_only_use(memory);
    let unflushed = scene.defer(memory);
    execute(Command::Idle);
    execute(Command::Run(scene.space));
    assert!(!with_pinned(|pin| unflushed.is_due(pin)), "the other CPU has caught up");
    scene.reuse(memory, unflushed);
    new_or_old(execute(Command::Read(PAGE)))
}
