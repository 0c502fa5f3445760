//! CPUs that a flush left out because of what they seemed to be doing.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{
    Stage, free_table_after_interrupt, join_the_mask, programs, unmap_interrupt_if_set_and_reuse,
    use_the_space,
};
use crate::hardware::Entry;
use crate::interrupt_oracle::{FlushScope, SpaceUse};
use crate::machine::{CheckWord, fence, with_machine};

programs! {
    "mask-read-before-entry-is-written": join_and_use, flush_the_mask;
    "barrier-skipped-as-the-bit-was-set": be_lazy_and_return, flush_unless_lazy;
    "left-out-in-the-middle-of-a-switch":
        switch_and_publish_late, |stage| flush_if_set(stage, "the loaded space");
    "mask-trimmed-by-another": use_while_trimmed, trim_and_flush;
    "mask-cleared-before-the-root-is-left":
        leave_the_mask_and_the_space,
        |stage| free_table_after_interrupt(stage, || stage.word("the mask").load(Acquire) & 1 != 0);
    "interrupted-while-lazy": run_and_idle, flush_if_active_or_lazy;
    "generation-read-after-the-load":
        load_and_read_the_generation, |stage| flush_if_set(stage, "active");
    "flush-request-lost-as-the-cpu-returns": be_stopped_and_return, request_or_interrupt;
    "flush-request-lost-by-a-second-stop": be_stopped_twice_and_return, request_or_interrupt;
    "left-to-a-switch-that-is-skipped":
        drop_from_the_record, |stage| unmap_interrupt_if_set_and_reuse(stage, "the record");
}

/// The virtual CPU does not run.
const AWAY: u64 = 1;
/// The TLB of the virtual CPU must be emptied before it runs. Only with [`AWAY`].
const REQUEST: u64 = 2;

fn join_and_use(stage: &Stage) {
    join_the_mask(stage);
    stage.user_mode();
}

fn flush_the_mask(stage: &Stage) {
    let entry = stage.space(0).entry(0);
    stage.space(0).store(0, Entry::EMPTY);
    if stage.is_fixed() {
        fence();
    }
    stage.interrupt_if_set("the mask");
    fence();
    stage.claim_flushed(0, 0);
    stage.reuse(entry.target());
}

fn be_lazy_and_return(stage: &Stage) {
    let (generation, lazy) = (stage.word("the generation"), stage.word("lazy"));
    let seen = generation.load(Acquire);
    stage.load(0);
    lazy.store(1, Release);
    fence();
    stage.masked(|| {
        lazy.store(0, Release);
        if stage.is_fixed() {
            fence();
        }
        if generation.load(Acquire) != seen {
            stage.invalidate_all();
        }
    });
    stage.user_mode();
}

fn flush_unless_lazy(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.word("the generation").fetch_add(1, AcqRel);
    if stage.word("lazy").load(Acquire) == 0 {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}

fn switch_and_publish_late(stage: &Stage) {
    let (generation, loaded) = (stage.word("the generation"), stage.word("the loaded space"));
    stage.masked(|| {
        if stage.is_fixed() {
            // From here on, the space counts as loaded.
            loaded.store(1, Release);
            fence();
        }
        generation.load(Acquire);
        stage.load(0);
        loaded.store(1, Release);
        fence();
    });
    stage.user_mode();
}

fn use_while_trimmed(stage: &Stage) {
    join_the_mask(stage);
    stage.wait_for("trimmed");
    stage.user_mode();
}

fn trim_and_flush(stage: &Stage) {
    if !stage.is_fixed() {
        // By now, all CPUs but the one user have been asked to leave, and have left.
        stage.word("the mask").store(0, Release);
        fence();
    }
    stage.signal("trimmed");
    unmap_interrupt_if_set_and_reuse(stage, "the mask");
}

fn leave_the_mask_and_the_space(stage: &Stage) {
    join_the_mask(stage);
    stage.user_mode();
    let leave_mask = || _ = stage.word("the mask").fetch_and(!1, AcqRel);
    stage.masked(|| stage.in_fixed_order(|| stage.load_kernel(), leave_mask));
}

fn run_and_idle(stage: &Stage) {
    stage.masked(|| {
        with_machine(|machine| machine.set_use(SpaceUse::Switching));
        stage.word("active").store(1, Release);
        fence();
        stage.load(0);
        with_machine(|machine| machine.set_use(SpaceUse::Active(stage.space(0).root())));
    });
    stage.user_mode();
    stage.masked(|| {
        stage.word("active").store(0, Release);
        with_machine(|machine| machine.set_use(SpaceUse::None));
    });
}

fn flush_if_active_or_lazy(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.word("the generation").fetch_add(1, AcqRel);
    let flush = || {
        if !stage.is_fixed() || stage.word("active").load(Acquire) != 0 {
            stage.interrupt_and_wait(0);
        }
    };
    with_machine(|machine| machine.flushing(stage.space(0).root(), FlushScope::Pages, flush));
    stage.reuse(frame);
}

fn load_and_read_the_generation(stage: &Stage) {
    let (generation, active) = (stage.word("the generation"), stage.word("active"));
    stage.masked(|| {
        let before = generation.load(Acquire);
        stage.load(0);
        let seen = if stage.is_fixed() { before } else { generation.load(Acquire) };
        active.store(1, Release);
        fence();
        if generation.load(Acquire) != seen {
            stage.invalidate_all();
        }
    });
    stage.user_mode();
}

/// The virtual CPU uses the space, is stopped, and returns by `come_back`, which returns the word
/// that it finds.
fn be_stopped(stage: &Stage, come_back: impl FnOnce(&CheckWord) -> u64) {
    let word = stage.word("the virtual CPU");
    use_the_space(stage);
    stage.masked(|| {
        word.store(AWAY, Release);
        if come_back(word) & REQUEST != 0 {
            stage.invalidate_all();
        }
    });
    stage.user_mode();
}

fn be_stopped_and_return(stage: &Stage) {
    be_stopped(stage, |word| {
        if stage.is_fixed() {
            return word.swap(0, AcqRel);
        }
        let found = word.load(Acquire);
        word.store(0, Release);
        found
    });
}

fn be_stopped_twice_and_return(stage: &Stage) {
    be_stopped(stage, |word| {
        if stage.is_fixed() {
            word.fetch_or(AWAY, AcqRel);
        } else {
            word.store(AWAY, Release);
        }
        word.swap(0, AcqRel)
    });
}

fn drop_from_the_record(stage: &Stage) {
    let record = stage.word("the record");
    let switch = || {
        record.store(1, Release);
        fence();
        stage.load(0);
    };
    stage.masked(switch);
    stage.user_mode();
    stage.masked(|| {
        record.store(0, Release);
        if stage.is_fixed() {
            switch();
        }
    });
    stage.user_mode();
}

/// Unmaps a page, and leaves a request if the virtual CPU does not run. Interrupts it otherwise.
fn request_or_interrupt(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    let word = stage.word("the virtual CPU");
    if word.compare_exchange(AWAY, AWAY | REQUEST, AcqRel, Acquire).is_err() {
        stage.interrupt_and_wait(0);
    }
    stage.reuse(frame);
}

/// Unmaps a page, and interrupts CPU 0 if a word is not zero.
fn flush_if_set(stage: &Stage, word: &str) {
    let frame = stage.unmap(0, 0);
    stage.word("the generation").fetch_add(1, AcqRel);
    stage.interrupt_if_set(word);
    stage.reuse(frame);
}
