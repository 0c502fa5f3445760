//! CPUs that a flush left out because of what they seemed to be doing.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::Word;

use super::{
    Bug, Stage, free_table_after_interrupt, interrupts_for_nothing, join_the_mask, uses_stale,
    walks_freed,
};
use crate::hardware::Entry;
use crate::interrupt_oracle::{FlushScope, SpaceUse};
use crate::machine::{fence, with_machine};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        name: "mask-read-before-entry-is-written",
        source: "Linux: CVE-2016-2069, 71b3c126e611",
        story: "A flush stores the page-table entry, and reads the mask before the store is \
                visible. A CPU that joins in between is not in the mask, and finds the old entry.",
        finds: uses_stale,
        words: &["the mask"],
        cpus: &[join_and_use, flush_the_mask],
        ..Bug::DEFAULT
    },
    Bug {
        name: "barrier-skipped-as-the-bit-was-set",
        source: "Linux: 209954cbc7d0, fixed by 83b0177a6c48",
        story: "A CPU that returned from lazy mode found its bit in the mask set already, and left \
                out the locked operation. That operation was also the barrier before it read the \
                generation.",
        finds: uses_stale,
        words: &["the generation", "lazy"],
        cpus: &[be_lazy_and_return, flush_unless_lazy],
        ..Bug::DEFAULT
    },
    Bug {
        name: "left-out-in-the-middle-of-a-switch",
        source: "Linux: fea4e317f9e7",
        story: "A CPU that switches to a space has read the generation, and has not yet published \
                which space it has loaded. A flush reads the loaded space, and leaves the CPU out.",
        finds: uses_stale,
        words: &["the generation", "the loaded space"],
        cpus: &[switch_and_publish_late, |stage| flush_if_set(stage, "the loaded space")],
        ..Bug::DEFAULT
    },
    Bug {
        name: "mask-trimmed-by-another",
        source: "Linux on powerpc: a665eec0a22e",
        story: "A CPU flushes a space with one user. It makes all other CPUs leave the space, and \
                then clears the mask. In between, a kernel thread has begun to use the space on \
                another CPU.",
        finds: uses_stale,
        words: &["the mask", "trimmed"],
        cpus: &[use_while_trimmed, trim_and_flush],
        ..Bug::DEFAULT
    },
    Bug {
        name: "mask-cleared-before-the-root-is-left",
        source: "Asterinas and Redox, where other rules prevent it (by reading)",
        story: "A CPU removes itself from the mask, and only then loads another root. In between, \
                a flush that frees a page table does not interrupt it.",
        finds: walks_freed,
        words: &["the mask"],
        cpus: &[leave_the_mask_and_the_space, free_a_table_under_the_mask],
        ..Bug::DEFAULT
    },
    Bug {
        name: "interrupted-while-lazy",
        source: "Linux 4.12 (study x86-lazy-tlb)",
        story: "A CPU idles with the space loaded, and every flush interrupts it, although it uses \
                no page and could catch up when it returns. This costs time, not correctness.",
        finds: interrupts_for_nothing,
        words: &["the generation", "active"],
        cpus: &[run_and_idle, flush_if_active_or_lazy],
        ..Bug::DEFAULT
    },
    Bug {
        name: "generation-read-after-the-load",
        source: "DragonOS, latent (by reading)",
        story: "A CPU loads a root and then reads the generation: a change in between counts as \
                seen, although the CPU may have cached the old entry.",
        finds: uses_stale,
        words: &["the generation", "active"],
        cpus: &[load_and_read_the_generation, |stage| flush_if_set(stage, "active")],
        ..Bug::DEFAULT
    },
    Bug {
        name: "flush-request-lost-as-the-cpu-returns",
        source: "KVM: CVE-2019-3016, fixed by 8c6de56a42e0",
        story: "A flush leaves a request in the word of a virtual CPU that does not run, and does \
                not wait for the CPU. The hypervisor has read the word already, and clears it \
                before it runs the CPU.",
        finds: uses_stale,
        words: &["the virtual CPU"],
        cpus: &[be_stopped_and_return, request_or_interrupt],
        ..Bug::DEFAULT
    },
    Bug {
        name: "flush-request-lost-by-a-second-stop",
        source: "KVM: b043138246a4",
        story: "A hypervisor records that a virtual CPU has stopped, although this is recorded \
                already, and so overwrites the request that a flush has left in the meantime.",
        finds: uses_stale,
        words: &["the virtual CPU"],
        cpus: &[be_stopped_twice_and_return, request_or_interrupt],
        ..Bug::DEFAULT
    },
    Bug {
        name: "left-to-a-switch-that-is-skipped",
        source: "Linux on powerpc: CVE-2025-71078 (reduced: there, the SLB has an entry twice)",
        story: "A CPU drops an entry from its record of the hardware's, and leaves the hardware to \
                the next switch. The switch is skipped, because the space is the same.",
        finds: uses_stale,
        words: &["the record"],
        cpus: &[drop_from_the_record, flush_if_recorded],
        ..Bug::DEFAULT
    },
];

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

fn flush_the_mask_in_order(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.interrupt_if_set("the mask");
    stage.reuse(frame);
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
    flush_the_mask_in_order(stage);
}

fn leave_the_mask_and_the_space(stage: &Stage) {
    join_the_mask(stage);
    stage.user_mode();
    let leave_mask = || _ = stage.word("the mask").fetch_and(!1, AcqRel);
    stage.masked(|| stage.in_fixed_order(|| stage.load_kernel(), leave_mask));
}

fn free_a_table_under_the_mask(stage: &Stage) {
    free_table_after_interrupt(stage, || stage.word("the mask").load(Acquire) & 1 != 0);
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

/// The virtual CPU uses the space, is stopped, and returns.
fn be_stopped_and_return(stage: &Stage) {
    let word = stage.word("the virtual CPU");
    stage.load(0);
    stage.user_mode();
    stage.masked(|| {
        word.store(AWAY, Release);
        let found = if stage.is_fixed() {
            word.swap(0, AcqRel)
        } else {
            let found = word.load(Acquire);
            word.store(0, Release);
            found
        };
        if found & REQUEST != 0 {
            stage.invalidate_all();
        }
    });
    stage.user_mode();
}

fn be_stopped_twice_and_return(stage: &Stage) {
    let word = stage.word("the virtual CPU");
    stage.load(0);
    stage.user_mode();
    stage.masked(|| {
        word.store(AWAY, Release);
        if stage.is_fixed() {
            word.fetch_or(AWAY, AcqRel);
        } else {
            word.store(AWAY, Release);
        }
        if word.swap(0, AcqRel) & REQUEST != 0 {
            stage.invalidate_all();
        }
    });
    stage.user_mode();
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

fn flush_if_recorded(stage: &Stage) {
    let frame = stage.unmap(0, 0);
    stage.interrupt_if_set("the record");
    stage.reuse(frame);
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
